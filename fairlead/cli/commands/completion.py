"""The verb completion: prints a completion script for bash, zsh or fish."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Json
from fairlead.cli.shell_completion import SCRIPTS
from fairlead.errors import InvalidSpec


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")], as_json: Json = False
) -> None:
    """Print the completion script of a shell. For bash: eval "$(fairlead completion bash)" in ~/.bashrc."""
    if shell not in SCRIPTS:
        raise InvalidSpec(f"{shell!r} is not a supported shell", field="SHELL", value=shell,
                          fix=f"use one of {', '.join(SCRIPTS)}")  # fmt: skip
    if as_json:
        output.print_json({"shell": shell, "script": SCRIPTS[shell]})
    else:
        for line in SCRIPTS[shell].split("\n"):
            output.line(line)
