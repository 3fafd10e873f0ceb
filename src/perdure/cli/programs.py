"""Where the options of a command of ours end, and the command line of somebody else's program begins. Called by `app`."""

from __future__ import annotations

import cyclopts

_FOLLOWED = frozenset({("run",), ("without-io-uring",), ("eval", "init")})
"""Commands behind which a program is named, with arguments of its own."""


def set_apart(tree: cyclopts.App, argv: list[str]) -> tuple[list[str], list[str]]:
    """Return which of `argv` are for us, and which for the program: everything from its name on, with or without ``--`` before it.

    What is the program's begins with ``--``; it is empty where no program is named.
    """
    path, apps, words = tree.parse_commands(argv)
    if path not in _FOLLOWED:
        end = argv.index("--") if "--" in argv else len(argv)
        return argv[:end], argv[end:]
    options = apps[-1].assemble_argument_collection()
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("--", "-"):
        at += 2 if _takes_the_next(options, words[at]) else 1
    ours = [*path, *words[:at]]
    return (ours, words[at:]) if words[at : at + 1] in ([], ["--"]) else (ours, ["--", *words[at:]])


def _takes_the_next(options: cyclopts.ArgumentCollection, word: str) -> bool:
    """Tell whether `word` is an option whose value is the word after it. One that is not known is told of when it is parsed."""
    try:
        option, _, _ = options.match(word)
    except ValueError:
        return False
    return not option.is_flag()
