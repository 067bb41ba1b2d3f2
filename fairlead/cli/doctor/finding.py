"""A finding of ``fairlead doctor``: the check, its result and the fix."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``warn``: works with limitations; ``fail``: something will not work."""

    name: str
    level: Level
    text: str
    fix: str | None = None


def ok(name: str, text: str) -> Finding:
    return Finding(name, "ok", text)


def warn(name: str, text: str, fix: str) -> Finding:
    return Finding(name, "warn", text, fix)


def fail(name: str, text: str, fix: str) -> Finding:
    return Finding(name, "fail", text, fix)


def graded(name: str, text: str, fix: str, *, fails: bool, warns: bool) -> Finding:
    """A failure, a warning, or ok."""
    return fail(name, text, fix) if fails else warn(name, text, fix) if warns else ok(name, text)


def in_child(work: Callable[[], object]) -> str | None:
    """Run ``work`` in a forked process and return its error, or None if it succeeds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode()[:300])
        except BaseException as error:  # noqa: BLE001 (the edge of a process: every error is a failed check)
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:300])
        finally:
            os._exit(0)  # never return into the parent's code
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        error_text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return error_text or (None if status == 0 else "the attempt was killed")
