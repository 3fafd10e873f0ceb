"""Recipes of a matrix: small TOML files, each a workload that is to be saved, killed and brought back. Called by `matrix`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from perdure import errors
from perdure.evaluation import typed_toml
from perdure.evaluation.plan_part import Argv, Name, Part, Span, Text

_MOST = 1000


class CheckpointAfter(Part, frozen=True, kw_only=True):
    """When the checkpoint is asked for: after lines of output, or after seconds."""

    lines: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="lines of output after which it is saved")] = None
    seconds: Annotated[Span | None, Meta(description="seconds after which it is saved")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.lines is None) == (self.seconds is None):
            raise ValueError("give lines or seconds, one of them")


class Recipe(Part, frozen=True, kw_only=True):
    """One recipe. Commands run in an empty folder of their own; no shell reads them."""

    name: Annotated[Name, Meta(description="what it is called")]
    command: Annotated[Argv, Meta(min_length=1, description="the command, as a list")]
    checkpoint_after: CheckpointAfter
    files: Annotated[tuple[Text, ...], Meta(description="files beside the recipe that are copied into the folder first")] = ()
    setup: Annotated[tuple[Argv, ...], Meta(description="commands to run in the folder first, each a list")] = ()
    needs: Annotated[tuple[Text, ...], Meta(description="programs without which it is not run")] = ()
    outputs: Annotated[tuple[Text, ...], Meta(description="files in the folder that must be the same byte for byte")] = ()
    ignore: Annotated[tuple[Text, ...], Meta(description="regular expressions; lines of output that match one are not compared")] = ()
    options: Annotated[Argv, Meta(description="options of perdure run")] = ()
    timeout_s: Annotated[Span, Meta(description="longest time of one step, seconds")] = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for pattern in self.ignore:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"ignore holds {pattern!r}, which is no regular expression: {error}") from error
        for name in (*self.files, *self.outputs):
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{name!r} must lie in the folder: write it without .. and without a leading slash")


class Found(msgspec.Struct, frozen=True):
    """A recipe and the folder that its files lie in."""

    recipe: Recipe
    beside: Path


def load(place: Path) -> tuple[Found, ...]:
    """Return the recipes in folder `place` (its files ``*.toml``), in the order of their file names.

    Raises `errors.InputMissing` without a folder, `errors.InputEmpty` without a recipe in it, and `errors.InputFormat` for one that is none
    or two of one name.
    """
    if not place.is_dir():
        raise errors.InputMissing(f"{place} is not a folder", hint="name a folder of recipes, such as docs/examples/matrix")
    paths = sorted(place.glob("*.toml"))
    if not paths:
        raise errors.InputEmpty(f"{place} holds no recipe", hint="a recipe is a file NAME.toml; see docs/examples/matrix")
    if len(paths) > _MOST:
        raise errors.InputFormat(f"{place} holds {len(paths)} files: more than {_MOST} are no matrix")
    found = tuple(Found(typed_toml.decode(typed_toml.read(path), Recipe, source=str(path)), place) for path in paths)
    names = [one.recipe.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise errors.InputFormat(f"{place}: two recipes are called {twice}", hint="give each a name of its own")
    return found
