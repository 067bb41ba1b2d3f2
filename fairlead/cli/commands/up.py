"""The verb up: starts a platform on this machine, in the foreground or in the background."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output as show
from fairlead.cli.fairness_options import Fairness, FairnessOptions, HalfLife
from fairlead.cli.limit_options import KeepAudit, parse_retention
from fairlead.cli.listen_options import (
    BehindHttps,
    Insecure,
    ListenOptions,
    SelfSigned,
    TlsCert,
    TlsKey,
    certificate_facts,
)
from fairlead.cli.log_options import LogFormat, LogLevel, LogOptions, Otlp
from fairlead.cli.options import HomeDir, Json
from fairlead.errors import FairleadError, InvalidSpec, Refused, Unavailable
from fairlead.home import Home, default_home
from fairlead.units import is_duration, parse_duration

if TYPE_CHECKING:
    from fairlead.control.serve import Ready

PORT = 8471
STORE = "FAIRLEAD_STORE"
ISOLATION, LEVELS = "FAIRLEAD_ISOLATION", ("auto", "sandbox", "user", "none")
FIRST_ANSWER_S = 30.0  # only for a slow platform: a dead one is noticed at once
LOG_LINES = 12
DAY_S = 86400.0


def up(
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="Number (4), with speeds (2x0.7,2x0.3) or places (2@eu,2@us).")
    ] = None,
    home: HomeDir = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help=f"Default: {PORT}, or a free port if that is in use.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    store: Annotated[
        str | None,
        typer.Option("--store", help=f"Database URL; default: {STORE}, else the last one used, else SQLite."),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option("--isolation", help="sandbox, user or none; default: auto, the strongest available."),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_self_signed: SelfSigned = False,
    insecure: Insecure = False,
    behind_https: BehindHttps = False,
    secret_key_file: Annotated[
        Path | None,
        typer.Option("--secret-key-file", help="File with the encryption key of secrets; default: in the home."),
    ] = None,
    sleep_after: Annotated[
        str | None,
        typer.Option("--sleep-after", help="Put nodes to sleep after this idle time: 10m, or never."),
    ] = None,
    keep_audit: KeepAudit = None,
    fairness: Fairness = None,
    half_life: HalfLife = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    otlp: Otlp = None,
    detach: Annotated[bool, typer.Option("--detach", help="Runs in the background; returns once it is up.")] = False,
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
    as_json: Json = False,
) -> None:
    """Start the platform on this machine. Prints its address and, on the first start, the admin token."""
    isolation = _isolation(isolation or os.environ.get(ISOLATION) or None)
    store = store or os.environ.get(STORE)
    os.environ.pop(STORE, None)  # it may hold a password that child processes do not need
    sleep_after_s, keep_audit_s = _sleep_after(sleep_after), _keep_audit(keep_audit)
    listening = ListenOptions(host, tls_cert, tls_key, tls_self_signed, insecure, behind_https)
    logging, fair = LogOptions(log_format, log_level, otlp), FairnessOptions(fairness, half_life)
    sharing = fair.sharing()
    folder = (home or default_home()).expanduser().absolute()
    _refuse_second(folder)
    _create_home(folder)
    chosen = _port(host) if port is None else port
    tls = listening.load(Home(folder))  # also with --detach, so that errors of the certificate appear here
    if detach:
        arguments = ["--home", str(folder), "--port", str(chosen), *listening.arguments(), *logging.arguments()]
        arguments += fair.arguments()
        arguments += ["--nodes", nodes] if nodes else []
        arguments += ["--isolation", isolation] if isolation else []
        arguments += ["--sleep-after", sleep_after] if sleep_after else []
        arguments += ["--keep-audit", keep_audit] if keep_audit else []
        arguments += ["--secret-key-file", str(secret_key_file.absolute())] if secret_key_file else []
        raise typer.Exit(_detached(folder, arguments, store, as_json))
    if ready_fd is not None:
        os.set_inheritable(
            ready_fd, False
        )  # otherwise nodes would inherit it, and the waiting parent would wait for them
    from fairlead.api.server import open_door
    from fairlead.control import serve

    certificate = tls.served if tls is not None else None
    settings = serve.Settings(home=folder, nodes=nodes, host=host, port=chosen, store=store, certificate=certificate)
    settings = replace(settings, secret_key_file=secret_key_file, isolation=isolation, sleep_after_s=sleep_after_s)
    settings = replace(settings, sharing=sharing, keep_audit_s=keep_audit_s)

    log_file = Home(folder).logs / "control.log" if ready_fd is not None else None
    log_settings = serve.LogSettings(logging.log_format, logging.log_level, log_file, logging.endpoint)
    settings = replace(settings, logging=log_settings)

    def ready(news: Ready) -> None:
        facts = {"url": news.url, "admin_token": news.admin_token, "waiting": news.waiting, "home": str(folder),
                **certificate_facts(tls, self_signed=tls_self_signed), "hints": list(news.hints)}  # fmt: skip
        if ready_fd is None:
            _show_started(facts, as_json, foreground=True)
        else:
            _report(ready_fd, facts)

    raise typer.Exit(serve.run(settings, ready, partial(open_door, tls=tls, behind_https=behind_https)))


def _isolation(wanted: str | None) -> str | None:
    if wanted is not None and wanted not in LEVELS:
        fix = f"use {', '.join(LEVELS)}"
        raise InvalidSpec(f"{wanted!r} is not an isolation level", field="--isolation", value=wanted, fix=fix)
    return wanted


def _sleep_after(wanted: str | None) -> float | None:
    if wanted is None:
        return None
    if wanted == "never":
        return math.inf
    if not is_duration(wanted) or parse_duration(wanted) <= 0:
        fix = "write it like 90s, 10m or 1h, or never"
        raise InvalidSpec(f"{wanted!r} is not a duration", field="--sleep-after", value=wanted, fix=fix)
    return float(parse_duration(wanted))


def _keep_audit(wanted: str | None) -> float | None:
    if wanted is None:
        return None
    wanted_s = parse_retention("--keep-audit", wanted)
    if wanted_s is not None and wanted_s < DAY_S:
        raise InvalidSpec("is less than one day", field="--keep-audit", value=wanted, fix="write it like 400d, or none")
    return math.inf if wanted_s is None else wanted_s


def _refuse_second(folder: Path) -> None:
    from fairlead.sdk.profile import alive, read

    found = read(folder)
    if found is not None and alive(found.pid) and is_answering(folder):
        raise Refused(
            f"a platform already runs for {folder} at {found.url} (process {found.pid})",
            fix="use it, stop it with fairlead down, or choose another --home",
        )


def _create_home(folder: Path) -> None:
    try:
        Home(folder).create()
    except OSError as error:
        problem = f"{folder} cannot be created: {error.strerror or error}"
        raise Refused(problem, field="--home", fix="name a writable folder") from None


def is_answering(folder: Path, within_s: float = 2.0) -> bool:
    from fairlead.sdk.client import Client

    try:
        with Client(home=folder, timeout_s=within_s) as platform:
            platform.health()
    except FairleadError:
        return False
    return True


def _port(host: str) -> int:
    """The default port if it is free, else 0 (any): several platforms may run on one machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, PORT))
        except OSError:
            return 0
    return PORT


def _show_started(facts: dict[str, Any], as_json: bool, *, foreground: bool = False) -> None:
    if as_json:
        show.print_json(facts)
        sys.stdout.flush()
        return
    if facts["waiting"]:
        show.line(f"standing by: {facts['waiting']}")
        return
    show.line(f"Fairlead is up at {facts['url']} (home {facts['home']})")
    if facts["admin_token"]:
        show.line(f"  admin token, shown only once: {facts['admin_token']}")
    show.line(f"  dashboard: {facts['url']}/ (log in with a token)")
    if facts.get("fingerprint"):
        show.line(f"  clients on other machines: FAIRLEAD_CA={facts['fingerprint']}")
    if facts.get("warning"):
        show.line(f"  {facts['warning']}", style="yellow")
    for hint in facts.get("hints", ()):
        show.line(f"  note: {hint}", style="yellow")
    next_step = "fairlead tenant create NAME" if facts["admin_token"] else "fairlead queue"
    show.line(f"  next: {next_step}" + ("    stop: Ctrl-C" if foreground else ""), style="dim")
    sys.stdout.flush()


def _report(descriptor: int, facts: dict[str, Any]) -> None:
    """Write the start-up facts to the parent process, which may have exited before a standby takes over."""
    try:
        os.write(descriptor, json.dumps(facts).encode() + b"\n")
    except BrokenPipeError:
        return


def _detached(folder: Path, arguments: list[str], store: str | None, as_json: bool) -> int:
    log = Home(folder).logs / "control.log"
    begins = log.stat().st_size if log.exists() else 0
    reading, writing = os.pipe()
    with log.open("ab") as output:
        child = subprocess.Popen(  # a session of its own survives the terminal
            [sys.executable, "-m", "fairlead.cli.main", "up", *arguments, "--ready-fd", str(writing)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=(writing,), start_new_session=True,
            cwd="/", env={**os.environ, **({STORE: store} if store else {})},  # every user can read arguments
        )  # fmt: skip
    os.close(writing)
    import fairlead.sdk.client  # noqa: F401 (needed below; imported while the platform starts)

    with os.fdopen(reading, "rb") as pipe:
        line = pipe.readline()  # returns when the platform is up or has died
    if not line:
        raise _not_started(log, begins, child.wait())
    facts = json.loads(line)
    if not facts["waiting"] and not is_answering(folder, FIRST_ANSWER_S):
        raise Unavailable("the platform started but does not answer", fix=f"see {log}")
    _show_started(facts, as_json)
    return 0


def _not_started(log: Path, begins: int, code: int) -> FairleadError:
    """The platform's own error, fix and exit code from its log, or else the last lines of the log."""
    with log.open("rb") as file:
        file.seek(begins)
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    logged = [show.clean(line).strip() for line in lines if line.strip()]
    errors = [line.removeprefix("fairlead up: ") for line in logged if line.startswith("fairlead up: ")]
    fixes = [line.removeprefix("fix: ") for line in logged if line.startswith("fix: ")]
    if errors:
        kind = {InvalidSpec.exit_code: InvalidSpec, Refused.exit_code: Refused}.get(code, Unavailable)
        return kind(errors[-1], fix=fixes[-1] if fixes else f"see {log}")
    return Unavailable(
        "the platform did not start: " + (" / ".join(logged[-LOG_LINES:]) or "its log is empty"), fix=f"see {log}"
    )
