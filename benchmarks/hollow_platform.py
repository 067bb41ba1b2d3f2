"""A control plane with its door on hollow agents: what it takes by itself, and how many jobs it carries a second."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog

from benchmarks.hollow_agents import HollowAgents
from fairlead.api.server import open_door
from fairlead.control.identity import tokens as identity
from fairlead.control.identity.secret_vault import SecretVault
from fairlead.control.observability.event_metrics import EventFollower
from fairlead.control.observability.scrape import Scraper
from fairlead.control.reconcile.loop import Controller
from fairlead.control.reconcile.worker_specs import launch_secrets, worker_orders
from fairlead.control.records import Role
from fairlead.control.service.core import Core
from fairlead.control.service.platform import Platform
from fairlead.control.store import tenants, tokens
from fairlead.control.store.engine import Store
from fairlead.home import Home
from fairlead.specs import TenantSpec

OPEN_S = 60.0


@dataclass(frozen=True, slots=True)
class HollowPlatform:
    """Where it answers, and what it has taken."""

    url: str
    token: str
    database: Path
    agents: HollowAgents
    loop: asyncio.AbstractEventLoop

    def cpu_s(self) -> float:
        """Of this process and its planner, without the agents and without the thread that asks."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        spent = own.ru_utime + own.ru_stime - self.agents.own_cpu_s - time.thread_time()
        for child in psutil.Process().children():
            with suppress(psutil.Error):
                times = child.cpu_times()
                spent += times.user + times.system
        return spent


@contextmanager
def hollow_platform(nodes: int, every_s: float) -> Iterator[HollowPlatform]:
    """One that runs in a thread of this process, with a tenant named bench; whoever measures it asks from another."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(prefix="fairlead-hollow-") as folder:
        agents, opened = HollowAgents(nodes, every_s), threading.Event()
        made: list[HollowPlatform] = []
        loop = asyncio.new_event_loop()

        def ready(running: HollowPlatform) -> None:
            made.append(running)
            opened.set()

        main = loop.create_task(_serve(Path(folder), agents, ready))
        thread = threading.Thread(target=_run, args=(loop, main), name="hollow-platform")
        thread.start()
        try:
            if not opened.wait(OPEN_S):
                raise TimeoutError("the hollow platform does not open")
            yield made[0]
        finally:
            loop.call_soon_threadsafe(main.cancel)
            thread.join()
            loop.close()


def _run(loop: asyncio.AbstractEventLoop, main: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(main)


async def _serve(folder: Path, agents: HollowAgents, ready: Callable[[HollowPlatform], None]) -> None:
    home = Home(folder)
    home.create()
    store, vault = Store.open(f"sqlite:///{home.database}"), SecretVault(home, b"k" * 32)
    try:
        epoch = await store.acquire_lease("hollow", 1e9)
        token, bearer = identity.mint(None, Role.ADMIN, "admin", None, time.time())
        await store.write(lambda connection: tenants.insert(connection, TenantSpec(name="bench")))
        await store.write(lambda connection: tokens.insert(connection, token))
        await agents.open(epoch or 0)
        controller = Controller(store, agents, worker_orders(home), secrets_for=launch_secrets(vault))
        follower = EventFollower(store, controller)
        await follower.begin()
        scraper = Scraper(store, controller, follower, home)
        core = Core(store, controller, home, vault, time.time, lambda: None, time.time(), scraper, ring=follower.ring)
        running: list[Coroutine[Any, Any, None]] = [controller.run(), follower.run()]

        def opened(port: int) -> None:
            gc.freeze()  # as a platform does when it has started
            loop = asyncio.get_running_loop()
            ready(HollowPlatform(f"http://127.0.0.1:{port}", bearer, home.database, agents, loop))

        running.append(open_door(Platform(core), "127.0.0.1", 0, opened))
        tasks = [asyncio.create_task(each) for each in running]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await agents.close()
    finally:
        await store.close()
