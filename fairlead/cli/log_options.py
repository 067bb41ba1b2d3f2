"""Options of ``fairlead up`` for its log and traces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import typer

LogFormat = Annotated[str | None, typer.Option("--log-format", help="text or json; default: FAIRLEAD_LOG_FORMAT.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info (default), warning or error.")]
Otlp = Annotated[
    str | None,
    typer.Option("--otlp", help="OTLP collector for traces: http://localhost:4318; or FAIRLEAD_OTLP_ENDPOINT."),
]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The log options, validated before anything starts."""

    log_format: str | None = None
    log_level: str | None = None
    otlp: str | None = None

    def __post_init__(self) -> None:
        if any((self.log_format, self.log_level)) or "FAIRLEAD_LOG_FORMAT" in os.environ:
            from fairlead.logbook import wanted_format, wanted_level

            wanted_format(self.log_format)
            wanted_level(self.log_level)
        if self.endpoint:
            from fairlead.control.observability.tracing import check_endpoint

            check_endpoint(self.endpoint)

    @property
    def endpoint(self) -> str | None:
        return self.otlp or os.environ.get("FAIRLEAD_OTLP_ENDPOINT") or None

    def arguments(self) -> list[str]:
        """The same options as arguments of the background process."""
        given = {"--log-format": self.log_format, "--log-level": self.log_level, "--otlp": self.otlp}
        return [word for option, value in given.items() if value for word in (option, value)]
