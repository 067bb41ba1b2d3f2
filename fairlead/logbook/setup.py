"""Configures a process's log: one format for the platform's lines and those of libraries."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal, cast

import structlog

from fairlead.errors import InvalidSpec
from fairlead.logbook.redact import redact
from fairlead.logbook.rotate import LIMIT_BYTES, StandardError
from fairlead.terminal import plain

Format = Literal["text", "json"]
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
FORMAT_VARIABLE, LEVEL_VARIABLE, BYTES_VARIABLE = "FAIRLEAD_LOG_FORMAT", "FAIRLEAD_LOG_LEVEL", "FAIRLEAD_LOG_BYTES"
VARIABLES = (FORMAT_VARIABLE, LEVEL_VARIABLE, BYTES_VARIABLE)
"""The variables that processes started by the control plane inherit."""


def wanted_format(given: str | None = None) -> Format:
    """The given format, or that of the environment."""
    return cast(Format, _one_of(FORMATS, given, FORMAT_VARIABLE, "--log-format", "text"))


def wanted_level(given: str | None = None) -> str:
    usual = "debug" if os.environ.get("FAIRLEAD_DEBUG") else "info"
    return _one_of(LEVELS, given, LEVEL_VARIABLE, "--log-level", usual)


def _one_of(choices: tuple[str, ...], given: str | None, variable: str, option: str, usual: str) -> str:
    value = given or os.environ.get(variable) or usual
    if value.lower() not in choices:
        field = option if given else variable
        raise InvalidSpec(f"{value!r} is not one of {', '.join(choices)}", field=field, value=value,
                          fix=f"use {' or '.join(choices)}")  # fmt: skip
    return value.lower()


def configure(
    process: str,
    *,
    format: str | None = None,
    level: str | None = None,
    path: Path | None = None,
    facts: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Log to standard error, in the given format and level or those of the environment.

    ``path`` is the file behind standard error, which is rotated when large. ``facts`` are added to every line.
    """
    chosen, threshold = wanted_format(format), wanted_level(level)

    def standing(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**line, "process": process, **facts()}

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        standing,
        structlog.processors.format_exc_info,
        redact,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(threshold.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = StandardError(path, int(os.environ.get(BYTES_VARIABLE) or LIMIT_BYTES))
    written = _as_json if chosen == "json" else _as_text
    finish: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, written]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=finish))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of libraries, warnings only
    logging.getLogger("fairlead").setLevel(threshold.upper())


def reset() -> None:
    """Reset logging as in a fresh process: a forked worker belongs to the tenant."""
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    logging.getLogger("fairlead").setLevel(logging.NOTSET)
    structlog.reset_defaults()


def _as_json(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
    first = {"time": line.pop("timestamp", None), "level": line.pop("level", method), "message": line.pop("event", "")}
    return json.dumps(first | dict(line), default=str)


def _as_text(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
    """A readable line: time, level, message, other fields as key=value. Values cannot start a new line."""
    time, level, what = line.pop("timestamp", ""), line.pop("level", method), _plain(str(line.pop("event", "")))
    trace = line.pop("exception", None) or line.pop("trace", None)
    rest = " ".join(f"{key}={_plain(value)}" for key, value in line.items() if key != "logger" and value is not None)
    told = f"{time} {level:<7} {what}" + (f"  {rest}" if rest else "")
    return told if not trace else "\n    ".join([told, *map(plain, str(trace).rstrip().split("\n"))])


def _plain(value: Any) -> str:
    if isinstance(value, str) and value.isprintable():
        return value
    return json.dumps(value, default=str) if not isinstance(value, bool | int | float) else str(value)
