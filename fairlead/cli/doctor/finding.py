"""One finding of the doctor: what was looked at, how it is, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``warn``: it works, but not as well as it could; ``fail``: something will not work."""

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
    """A failure, else a warning, else all is well."""
    return fail(name, text, fix) if fails else warn(name, text, fix) if warns else ok(name, text)


def in_child(work: Callable[[], object]) -> str | None:
    """Why this does not work, tried in a forked process that ends with it; None when it does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode()[:300])
        except BaseException as error:  # noqa: BLE001 (the edge of a process: what we did not think of is no success)
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:300])
        finally:
            os._exit(0)  # whatever else happened: nothing of the parent's runs on in here
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return said or (None if status == 0 else "the attempt was killed")
