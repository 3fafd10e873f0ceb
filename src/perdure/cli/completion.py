"""`perdure completion`: print a shell's completion script."""

from __future__ import annotations

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the completion script of a shell.

    For bash: `perdure completion bash > ~/.local/share/bash-completion/completions/perdure`

    Parameters
    ----------
    shell
        The shell to complete for.
    """
    from perdure.cli import app

    script = app.build().generate_completion(prog_name="perdure", shell=shell)
    if shell == "bash":
        # Where nothing of ours fits, it is a file: a history, or the command to run.
        script = script.replace("complete -F ", "complete -o bashdefault -o default -F ")
    sys.stdout.write(script)
