"""Runs the embedded platform: acquires the lease, finds or starts the nodes, reconciles and serves the API."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection

from fairlead import __version__, data_folder, logbook
from fairlead.agent.embedded.backend import LocalBackend, parse_nodes
from fairlead.agent.embedded.node_records import living_nodes
from fairlead.control.identity import tokens as identity
from fairlead.control.identity.secret_vault import SecretVault
from fairlead.control.observability import tracing
from fairlead.control.observability.event_metrics import EventFollower
from fairlead.control.observability.scrape import Scraper
from fairlead.control.pipelines.driver import Pipelines
from fairlead.control.pipelines.quarantine import PipelineQuarantine
from fairlead.control.plans.machine_calibration import IdleCalibration, StoredCalibration
from fairlead.control.reconcile import leader_fencing
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.reconcile.internal_errors import run_forever
from fairlead.control.reconcile.loop import Controller
from fairlead.control.reconcile.worker_events import stop_changes
from fairlead.control.reconcile.worker_specs import launch_secrets, worker_orders
from fairlead.control.records import JobPhase, Role
from fairlead.control.retention.pruner import Pruner
from fairlead.control.service.core import Core
from fairlead.control.service.platform import Platform
from fairlead.control.startup_hints import startup_hints
from fairlead.control.store import jobs, row_deletion, tenants, tokens
from fairlead.control.store.engine import Store
from fairlead.control.store.retry import retry_until_available
from fairlead.errors import FairleadError, LostLeadership, Unavailable
from fairlead.home import Home
from fairlead.scheduling.state import DEFAULT_SHARING, Sharing

log = structlog.get_logger()

LEASE_S = 3.0
PREEMPT_WITHIN_S = 10.0  # how long running gangs may take for their snapshots when the platform ends


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Where and how the platform logs and traces."""

    log_format: str | None = None  # text or json; None: from the environment
    log_level: str | None = None
    log_file: Path | None = None  # the file behind standard error, rotated when it is large
    otlp: str | None = None  # the endpoint for traces


@dataclass(frozen=True, slots=True)
class Settings:
    """How to start a platform."""

    home: Path
    nodes: str | None = None  # None: as last time, or one node per core
    host: str = "127.0.0.1"
    port: int = 0
    store: str | None = None  # None: as last time, or SQLite in the home folder
    isolation: str | None = None  # auto, sandbox, user, none; None: as last time, or the best that works
    secret_key_file: Path | None = None  # None: FAIRLEAD_SECRET_KEY, or the key in the home folder
    logging: LogSettings = LogSettings()
    sleep_after_s: float | None = None  # nodes idle for so long end until needed; inf: never; None: as last time
    keep_audit_s: float | None = None  # the audit log and the platform's own events; inf: ever; None: as last time
    sharing: Sharing = DEFAULT_SHARING  # what of it is None: as last time, or as the policy has it
    certificate: Path | None = None  # that the door answers with, for clients of this machine; None: plain HTTP


@dataclass(frozen=True, slots=True)
class Ready:
    """What to report while starting: where the API is, or what the platform waits for."""

    url: str | None
    admin_token: str | None = None  # only on the first start
    waiting: str | None = None
    hints: Sequence[str] = ()  # for the operator, each with its fix


Opened = Callable[[int], None]
Door = Callable[[Platform, str, int, Opened], Awaitable[None]]
"""Serves the API on host and port until cancelled; calls back with the real port once it listens."""


def run(settings: Settings, ready: Callable[[Ready], None], door: Door) -> int:
    """Run the platform until it is told to end. Returns an exit code."""
    facts: dict[str, Any] = {}
    configure_logging(settings.logging, facts)
    try:
        return asyncio.run(_run(settings, ready, door, facts))
    finally:
        tracing.stop()


def configure_logging(telling: LogSettings, facts: Mapping[str, Any]) -> None:
    """Set up the log, also for processes started from here, and the traces if they are wanted."""
    os.environ[logbook.FORMAT_VARIABLE] = logbook.wanted_format(telling.log_format)
    os.environ[logbook.LEVEL_VARIABLE] = logbook.wanted_level(telling.log_level)
    logbook.configure("control", path=telling.log_file, facts=lambda: facts)
    if telling.otlp is not None:
        tracing.start(telling.otlp)


async def _run(settings: Settings, ready: Callable[[Ready], None], door: Door, facts: dict[str, Any]) -> int:
    home = Home(settings.home.absolute())
    shapes = parse_nodes(settings.nodes) if settings.nodes else ()
    home.create()
    vault = SecretVault.of(home, settings.secret_key_file)
    url = store_url(settings.store, home)
    store = Store.open(url)
    ending: asyncio.Future[bool] = asyncio.get_running_loop().create_future()  # True: end the gangs, too
    _on_signals(ending)
    try:
        await _acquire_lease(store, ready, ending)
        if ending.done():
            return 0
        facts["epoch"] = store.epoch
        strangers = len(await store.read(tenants.all_tenants)) > 1
        backend = LocalBackend(home, shapes, isolation=settings.isolation, strangers=strangers, derive=vault.derive)
        settled = replace(settings, store=url, sleep_after_s=sleep_after(settings.sleep_after_s, home),
                          sharing=sharing_settings(settings.sharing, home))  # fmt: skip
        return await _lead_on(settled, home, store, backend, vault, ready, door, ending)
    finally:
        await store.close()


async def _lead_on(
    settings: Settings, home: Home, store: Store, backend: LocalBackend, vault: SecretVault,
    ready: Callable[[Ready], None], door: Door, ending: asyncio.Future[bool],
) -> int:  # fmt: skip
    """Lead until told to end, or until another control plane leads."""
    tasks: list[asyncio.Future[Any]] = [asyncio.create_task(_renew_lease(store))]
    store.keep_reserve()
    alone, listening = not living_nodes(home), False
    try:
        await backend.open(store.epoch or 0)
        services = await _build_services(settings, home, store, backend, vault, ending)
        announce = await _announcer(settings, home, store, backend, ready)

        def opened(port: int) -> None:
            nonlocal listening
            listening = True
            announce(port)

        tasks.append(asyncio.ensure_future(door(Platform(services.core), settings.host, settings.port, opened)))
        await asyncio.sleep(0)
        if tasks[-1].done():  # the port is taken: start nothing else
            tasks[-1].result()
        tasks += services.start()
        await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        if ending.done() and ending.result():
            await _end_gangs(store, services.controller)
            await backend.shutdown()
        return 0
    except LostLeadership as error:
        log.error("another control plane leads now; this one ends and leaves everything running", error=str(error))
        return 1
    except Exception:
        if alone and not listening:  # the start failed: nobody would ever look for the nodes that it started
            await backend.shutdown()
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await backend.close()
        if store.epoch is not None:
            await _release_lease(store)


@dataclass(frozen=True, slots=True)
class _Services:
    """The parts of a leading control plane."""

    controller: Controller
    core: Core
    pruner: Pruner
    follower: EventFollower
    calibration: IdleCalibration

    def start(self) -> list[asyncio.Future[Any]]:
        """Start the loop and the background services."""
        return [
            asyncio.ensure_future(self.controller.run()),
            asyncio.ensure_future(run_forever("pruning", self.pruner.run)),
            asyncio.ensure_future(run_forever("following events", self.follower.run)),
            asyncio.ensure_future(run_forever("measuring the machine", self.calibration.run)),
        ]


async def _build_services(
    settings: Settings, home: Home, store: Store, backend: LocalBackend, vault: SecretVault,
    ending: asyncio.Future[bool],
) -> _Services:  # fmt: skip
    measured = StoredCalibration(home, shared=backend.capabilities.one_machine)
    controller = Controller(
        store, backend, worker_orders(home), secrets_for=launch_secrets(vault), calibrator=measured,
        sleep_after_s=settings.sleep_after_s if settings.sleep_after_s != math.inf else None,
        sharing=settings.sharing,
    )  # fmt: skip
    pipelines = Pipelines(store, time.time, controller.nudge)
    controller.orchestrate = PipelineQuarantine(pipelines, store, time.time).advance
    gangs = controller.gang_registry
    calibration = IdleCalibration(store, measured, lambda: any(gangs.workers.values()), time.monotonic)
    follower = EventFollower(store, controller)
    await follower.begin()
    scraper = Scraper(store, controller, follower, home)
    core = Core(store, controller, home, vault, time.time, lambda: _end(ending, True), time.time(), scraper,
                ring=follower.ring)  # fmt: skip
    pruner = Pruner(store, home, news=controller, keep_audit_s=keep_audit(settings.keep_audit_s, home))
    return _Services(controller, core, pruner, follower, calibration)


async def _announcer(
    settings: Settings, home: Home, store: Store, backend: LocalBackend, ready: Callable[[Ready], None]
) -> Opened:
    """What to do once the API listens on a port: write the profile for clients, and report that the platform is up."""
    token, fresh = await _admin_token(store, home)
    granted = {each.name: each.policy.get("folders", []) for each in await store.read(tenants.all_tenants)}
    hints = startup_hints(backend.capabilities, granted, os.environ.get(data_folder.VARIABLE))
    keep_audit_s = keep_audit(settings.keep_audit_s, home)

    def announce(port: int) -> None:
        url = address(settings, port)
        gc.freeze()  # what is loaded by now stays: else every full collection stops all requests for a while
        write_profile(
            home, url, token, settings.store, settings.certificate, settings.sleep_after_s, settings.sharing,
            keep_audit_s,
        )  # fmt: skip
        ready(Ready(url, token if fresh else None, hints=hints))

    return announce


async def _end_gangs(store: Store, controller: Controller) -> None:
    """Preempt all gangs with a snapshot, unless that takes too long or the store is away."""
    try:
        async with asyncio.timeout(2 * PREEMPT_WITHIN_S):
            await _preempt_gangs(store, controller)
    except (TimeoutError, Unavailable) as error:
        if isinstance(error, LostLeadership):
            raise
        log.error("ending gangs without recording it; they will go on from their last snapshots", error=str(error))


async def _acquire_lease(store: Store, ready: Callable[[Ready], None], ending: asyncio.Future[bool]) -> None:
    """Wait until this control plane leads."""
    holder = leader_fencing.this_process()
    told = False

    async def take() -> int | None:
        return await store.acquire_lease(holder, LEASE_S, is_dead=leader_fencing.is_gone, fence=leader_fencing.fence)

    while await retry_until_available(take, "taking the lease") is None:
        if not told:
            ready(Ready(None, waiting="another control plane leads this store; waiting for its lease to end"))
            told = True
        await asyncio.wait({ending}, timeout=0.2)
        if ending.done():
            return
    failpoint("lease-taken")


async def _renew_lease(store: Store) -> None:
    """Renew the lease. While the store does not answer no one else can take over either; the first write after that
    decides."""
    while True:
        await asyncio.sleep(LEASE_S / 4)
        await retry_until_available(store.renew_lease, "renewing the lease")


async def _release_lease(store: Store) -> None:
    try:
        await store.release_lease()
    except Unavailable as error:  # the lease runs out by itself
        log.warning("the lease could not be given back", error=str(error))


async def _admin_token(store: Store, home: Home) -> tuple[str, bool]:
    """The admin token for clients on this machine; made on the first start, and when the profile was lost."""
    known = read_profile(home).get("token", "")
    now_s = time.time()
    try:
        token_id, secret = identity.parse(known)
        stored = await store.read(lambda connection: tokens.get(connection, token_id))
        identity.verify(stored, secret, now_s)
        return known, False
    except FairleadError:
        token, bearer = identity.mint(None, Role.ADMIN, "first admin token", None, now_s)
        await store.write(lambda connection: tokens.insert(connection, token))
        return bearer, True


async def _preempt_gangs(store: Store, controller: Controller) -> None:
    """Preempt every running gang with a snapshot, so that it goes on from there when the platform starts again."""
    controller.pause()
    now_s = time.time()

    def work(connection: Connection) -> None:
        for job in jobs.active(connection):
            if job.phase in (JobPhase.RUNNING, JobPhase.STARTING):
                jobs.update(connection, job.id, **stop_changes(JobPhase.QUEUED, "preempted", None, now_s))

    await store.write(work)
    for job in await store.read(jobs.in_flight):
        controller.nudge(job)
    while time.time() - now_s < PREEMPT_WITHIN_S:
        if not await store.read(jobs.in_flight):
            return
        await controller.wait_for_news(0.5)


def read_profile(home: Home) -> dict[str, Any]:
    """The profile that a running platform writes for clients on this machine; empty if there is none."""
    try:
        profile = json.loads(home.profile.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return profile if isinstance(profile, dict) else {}


def store_url(wanted: str | None, home: Home) -> str:
    """The store to open: the requested one, else that of the last start, so that no start misses the home's jobs."""
    return wanted or read_profile(home).get("store") or f"sqlite:///{home.database}"


def sleep_after(wanted_s: float | None, home: Home) -> float:
    """After how long an idle node sleeps: as requested, else as at the last start; infinite if never."""
    last_s = read_profile(home).get("sleep_after_s")
    return wanted_s if wanted_s is not None else math.inf if last_s is None else float(last_s)


def keep_audit(wanted_s: float | None, home: Home) -> float:
    """How long the audit log is kept: as requested, else as at the last start."""
    last_s = read_profile(home).get("keep_audit_s", row_deletion.KEEP_AUDIT_S)
    return wanted_s if wanted_s is not None else math.inf if last_s is None else float(last_s)


def sharing_settings(wanted: Sharing, home: Home) -> Sharing:
    """The settings of fairness over time: as requested, else as at the last start."""
    last = Sharing(**read_profile(home).get("sharing", {}))
    return Sharing(last.fair if wanted.fair is None else wanted.fair,
                   last.forget_s if wanted.forget_s is None else wanted.forget_s)  # fmt: skip


def address(settings: Settings, port: int) -> str:
    """The URL of the API for clients of this machine."""
    scheme = "http" if settings.certificate is None else "https"
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def write_profile(
    home: Home, url: str, token: str, store: str | None, certificate: Path | None = None,
    sleep_after_s: float | None = None, sharing: Sharing = DEFAULT_SHARING, keep_audit_s: float | None = None,
) -> None:  # fmt: skip
    """Write the profile for clients on this machine, and for the next start."""
    profile: dict[str, Any] = {"url": url, "token": token, "store": store, "pid": os.getpid(), "version": __version__}
    if certificate is not None:
        profile["certificate"] = str(certificate)
    if sleep_after_s is not None and sleep_after_s != math.inf:  # JSON knows no infinity
        profile["sleep_after_s"] = sleep_after_s
    if keep_audit_s is not None:
        profile["keep_audit_s"] = keep_audit_s if keep_audit_s != math.inf else None
    if sharing != DEFAULT_SHARING:
        profile["sharing"] = asdict(sharing)
    part = home.profile.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(profile, file)
    part.replace(home.profile)


def _on_signals(ending: asyncio.Future[bool]) -> None:
    """Ctrl-C ends everything; SIGTERM only this control plane, so that the next one finds the gangs running."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, _end, ending, True)
    loop.add_signal_handler(signal.SIGTERM, _end, ending, False)


def _end(ending: asyncio.Future[bool], everything: bool) -> None:
    if not ending.done():
        ending.set_result(everything)
