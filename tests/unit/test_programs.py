"""Whose an option is: what stands behind the name of a program belongs to the program, as with env and nice."""

from __future__ import annotations

import pytest

from perdure.cli import app, programs


@pytest.mark.parametrize(
    ("given", "ours", "own"),
    [
        ("run python x.py --name e", "run", "-- python x.py --name e"),
        ("run --name a python x.py --name e --json", "run --name a", "-- python x.py --name e --json"),
        ("run --name a -- python x.py --name e", "run --name a", "-- python x.py --name e"),
        ("run --name=a -dq --every 10m make -j 4", "run --name=a -dq --every 10m", "-- make -j 4"),
        ("run -d -q --outputs a --outputs b env -i --help", "run -d -q --outputs a --outputs b", "-- env -i --help"),
        ("run docker run -- x", "run", "-- docker run -- x"),
        ("run -- -x", "run", "-- -x"),
        ("run - --json", "run", "-- - --json"),
        ("run --adopt 4711 --json", "run --adopt 4711 --json", ""),
        ("run --nmae e python --json", "run --nmae", "-- e python --json"),
        ("run --name", "run --name", ""),
        ("run", "run", ""),
        ("eval init --dir trial python train.py --dir x", "eval init --dir trial", "-- python train.py --dir x"),
        ("ps train --json", "ps train --json", ""),
        ("advise x -- --json", "advise x", "-- --json"),
        ("nonsense --json", "nonsense --json", ""),
    ],
)
def test_options_behind_a_program_are_its_own(given, ours, own):
    assert programs.set_apart(app.build(), given.split()) == (ours.split(), own.split())


def test_the_program_gets_its_options_and_we_get_ours():
    tree = app.build()
    words = ["run", "--name", "a", "python", "x.py", "--name", "e", "--", "-q"]
    ours, own = programs.set_apart(tree, words)
    _, bound, _ = tree.parse_args([*ours, *own], exit_on_error=False, print_error=False)
    assert bound.args == ("python", "x.py", "--name", "e", "--", "-q")
    assert bound.kwargs["name"] == "a"
