"""The verb secret: values that jobs get as environment variables and that are never shown again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, Tenant, client
from fairlead.cli.text_tables import Column
from fairlead.errors import InvalidSpec
from fairlead.terminal import plain

app = typer.Typer(help="Set, list and remove secrets.", rich_markup_mode=None)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the secret and of the environment variable in jobs: API_KEY.")
]


@app.command("set")
def set_secret(
    name: Name,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Read the value from this file.")
    ] = None,
    of: Tenant = None,
    as_json: Json = False,
) -> None:
    """Store a value for jobs that list its name in secrets. Reads a file, standard input, or a prompt.

    At least 4 characters: shorter values could not be masked in logs.
    """
    stored = client().set_secret(name, _value(name, from_file), tenant=of)
    if as_json:
        output.print_json(stored)
    else:
        output.line(f"secret {stored.name} of tenant {stored.tenant} is set; logs show it as ***")
        output.line(f"  a job uses it with secrets: [{stored.name}]", style="dim")


def _value(name: str, file: Path | None) -> str:
    """The value; never from the command line, which every user of the machine can read."""
    if file is None and sys.stdin.isatty():
        return str(typer.prompt(f"value of {plain(name)}", hide_input=True, err=True))
    try:
        data = sys.stdin.buffer.read() if file is None else file.expanduser().read_bytes()
        text = data.decode()
    except OSError as error:
        raise InvalidSpec(
            f"{file} cannot be read: {error.strerror}", field="--from-file", fix="name a readable file"
        ) from None
    except UnicodeDecodeError:
        raise InvalidSpec("is not text in UTF-8", field="value", fix="encode it, for example with base64") from None
    return text[:-1] if text.count("\n") == 1 and text.endswith("\n") else text  # the newline that echo adds


@app.command("list")
def list_secrets(of: Tenant = None, as_json: Json = False) -> None:
    """List secrets by name, with their last change."""
    found = client().secrets(tenant=of)
    if as_json:
        output.print_json({"secrets": found})
        return
    columns = [Column("NAME"), Column("CHANGED"), Column("CHANGED BY")]
    rows = ([each.name, output.when(each.changed_s), each.changed_by] for each in found)
    output.table(columns, rows, empty="no secrets; set one: fairlead secret set NAME")


@app.command("remove")
def remove_secret(name: Name, of: Tenant = None, as_json: Json = False) -> None:
    """Remove a secret. Running jobs keep it until they end."""
    client().remove_secret(name, tenant=of)
    if as_json:
        output.print_json({"removed": name})
    else:
        output.line(f"removed secret {name}")
