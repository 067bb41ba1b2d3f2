"""The verb init: writes a commented first job that runs without changes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Json
from fairlead.errors import Conflict, Refused

STARTER = {"job.yaml": "job.yaml", "train.py": "train.py", "fairleadignore": ".fairleadignore"}


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Created if missing; default: the current folder.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Write a commented job.yaml and train.py that run without changes. Never overwrites a file."""
    target = folder.expanduser()
    wanted = {target / name: source for source, name in STARTER.items()}
    existing = [path for path in wanted if path.exists() or path.is_symlink()]
    if existing:
        raise Conflict(f"{existing[0]} already exists", field="FOLDER", value=str(folder),
                       fix="name another folder (fairlead init my-job), or move the file away")  # fmt: skip
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path, source in wanted.items():
            with path.open("x", encoding="utf-8") as file:  # x: fails if the file appeared meanwhile
                file.write((files("fairlead.cli") / "starter" / source).read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"cannot write to {target}: {error.strerror or error}", field="FOLDER", value=str(folder),
                      fix="name a writable folder") from None  # fmt: skip
    if as_json:
        output.print_json({"folder": str(target.absolute()), "files": sorted(STARTER.values())})
        return
    output.line(f"wrote {', '.join(STARTER.values())} in {target.absolute()}")
    first = "" if target.absolute() == Path.cwd() else f"cd {folder} && "
    output.line(f"  run it: {first}fairlead submit job.yaml --watch")
