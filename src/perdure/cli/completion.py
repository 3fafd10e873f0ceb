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

    sys.stdout.write(app.build().generate_completion(prog_name="perdure", shell=shell))
