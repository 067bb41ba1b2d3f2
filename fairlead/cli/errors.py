"""Runs a command line: errors become two lines on stderr and an exit code, never a stack trace."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

import typer

from fairlead.cli import output
from fairlead.cli.fast_path import shortcut
from fairlead.errors import FairleadError, InvalidSpec
from fairlead.home import Home, default_home
from fairlead.terminal import plain

INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The parser's base classes: in newer versions part of typer, in older ones of click.
UsageError = typer.BadParameter.__mro__[1]
ParserError = typer.BadParameter.__mro__[2]


def execute(app: typer.Typer, arguments: list[str]) -> int:
    """Run one command line, print its error if it fails, and return the exit code."""
    verb = f"fairlead {arguments[0]}" if arguments else "fairlead"
    _open_streams()
    try:
        call = shortcut(app, arguments)
        if call is None:
            command = typer.main.get_command(app)
            verb = command_path(command, arguments)
            code = command.main(arguments, prog_name="fairlead", standalone_mode=False)
        else:
            code = call()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.Exit as end:
        return end.exit_code
    except FairleadError as error:
        return _report(verb, error, as_json="--json" in arguments)
    except BrokenPipeError:  # `fairlead queue | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the edge of the process: logged, and shown in one line)
        if isinstance(error, ParserError):
            return _report_usage(verb, error, as_json="--json" in arguments)
        if isinstance(error, OSError) and error.errno in _FULL:
            return _report_full_disk(verb, error)
        return _report_unexpected(verb, error)


def _open_streams() -> None:
    """Replace closed outputs (``>&-``) with /dev/null, so that writing to them is no error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (closed at exit)


def _report_full_disk(verb: str, error: OSError) -> int:
    """Report that the output's disk is full; this is no fault to be logged."""
    place = error.filename or "the output"
    with suppress(OSError):  # unwritten output would fail again when the process exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    said = (error.strerror or str(error)).lower()
    _print_error(f"{verb}: cannot write to {place}: {said}", "free space, or write elsewhere")
    return 1


def command_path(command: object, arguments: list[str]) -> str:
    """The verb of a command line, such as ``fairlead nodes drain``."""
    words = ["fairlead"]
    for argument in arguments:
        inner = getattr(command, "commands", {}).get(argument)
        if inner is None:
            break
        words.append(argument)
        command = inner
    return " ".join(words)


def _report(verb: str, error: FairleadError, *, as_json: bool) -> int:
    _print_error(f"{verb}: {error}", error.fix)
    if as_json:
        sys.stdout.write(json.dumps(error.problem(), default=str) + "\n")
        sys.stdout.flush()
    return error.exit_code


def _report_usage(verb: str, error: Exception, *, as_json: bool) -> int:
    message = str(getattr(error, "format_message", lambda: str(error))()).strip()
    message = message[:1].lower() + message[1:].rstrip(".")
    fix = f"see {verb} --help"
    return _report(verb, _wrong_value(error, fix) or InvalidSpec(message, fix=fix), as_json=as_json)


def _wrong_value(error: Exception, fix: str) -> InvalidSpec | None:
    """An option's invalid value as the same kind of error as an invalid spec; None for other errors."""
    wrong = getattr(error.__cause__, "errors", None)
    option = getattr(error, "param", None)
    if wrong is None or option is None:
        return None
    first = wrong()[0]
    said = str(first["msg"]).removeprefix("Input ").partition(",")[0]
    value = str(first["input"])
    return InvalidSpec(f"{value!r} {said}", field=max(option.opts, key=len), value=value, fix=fix)


def _report_unexpected(verb: str, error: Exception) -> int:
    if os.environ.get("FAIRLEAD_DEBUG"):
        for line in traceback.format_exc().splitlines():
            output.note(line)
        return 1
    said = " ".join(f"{type(error).__name__}: {error}".split())
    _print_error(f"{verb}: unexpected error: {said}", f"the details are in {_write_log(verb)}; please report them")
    return 1


def _print_error(problem: str, fix: str | None) -> None:
    """Print a problem and its fix, one line each."""
    output.note(problem)
    if fix:
        output.note(f"  fix: {fix}")


def _write_log(verb: str) -> Path:
    """Write the stack trace to the home's log, or to a temporary file if that is not writable; returns its path."""
    text = "".join(f"{plain(line)}\n" for line in [f"--- {verb}", *traceback.format_exc().splitlines()])
    path = Home(default_home()).logs / "cli.log"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        descriptor, name = tempfile.mkstemp(prefix="fairlead-", suffix=".log", text=True)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        path = Path(name)
    return path
