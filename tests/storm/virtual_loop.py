"""An event loop on virtual time: nothing waits, and simulated processes can be stopped, resumed and killed."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any
from unittest import mock

START_S = 1_800_000_000.0
"""What a right clock shows when the storm begins."""

MOST_STEPS_AT_ONE_MOMENT = 200_000
MOST_CLOSES = 5
_TICK_S = 1e-9  # timers that are set for the same moment go off in the order in which they were set


class Process:
    """One simulated process: everything that it does runs in its context, so that it can be stopped as a whole."""

    def __init__(self, name: str, clock_off_s: float = 0.0, booted_s: float = 0.0) -> None:
        self.name = name
        self.clock_off_s = clock_off_s  # how far its wall clock is from the right one
        self.booted_s = booted_s  # what its machine's monotonic clock shows at the beginning
        self.alive, self.stopped = True, False
        self.held: list[asyncio.Handle] = []  # what it would have done while it was stopped
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def kill(self) -> None:
        self.alive = False
        for handle in self.held:
            drop(handle)
        self.held.clear()


def drop(handle: asyncio.Handle) -> None:
    """Let go of what will never be done: of a task that has not begun, nobody is to say that it was not awaited."""
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
    if coroutine is not None and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # type: ignore[arg-type]
        coroutine.close()  # type: ignore[union-attr]


PROCESS: ContextVar[Process] = ContextVar("process")


class Stuck(Exception):
    """Nothing can happen any more, or something happens for ever at one moment."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Time jumps to the next timer when nothing is ready. The order of all steps depends on the seed alone."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.now_s = 0.0
        self.steps = 0
        self.errors: list[str] = []
        self._delays = Random(f"{seed}/threads")
        self._set_timers = 0
        self._begun_s, self._begun_steps = 0.0, 0
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        self._set_timers += 1
        timer = asyncio.TimerHandle(when + self._set_timers * _TICK_S, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def within(self, process: Process, delay_s: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """Have a process do something after a while, if it lives then."""
        timer: asyncio.TimerHandle = self.call_at(self.now_s + delay_s, callback, *args, context=process.context)
        return timer

    async def sleep_until(self, at_s: float) -> None:
        """Return at this moment, or at once if it has passed."""
        await asyncio.sleep(max(0.0, at_s - self.now_s))

    def resume(self, process: Process) -> None:
        """Let a stopped process go on with all that it missed."""
        process.stopped = False
        self._ready.extend(process.held)
        process.held.clear()

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def end(self) -> None:
        """Close whatever waits still: what it says when it is closed, nobody hears."""
        for task in sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name().rpartition("-")[2])):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            for _ in range(MOST_CLOSES):
                try:
                    task.get_coro().close()  # type: ignore[union-attr]
                    break
                except Exception:  # noqa: BLE001, S112 (it awaits while it is closed: once more)
                    continue
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """What a thread would do, done at once after a while."""
        future = self.create_future()

        def work() -> None:
            try:
                value = func(*args)
            except Exception as error:  # noqa: BLE001 (whoever waits for the thread raises it)
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(value)

        self.call_at(self.now_s + self._delays.uniform(0.0002, 0.004), work)
        return future

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            while scheduled and scheduled[0]._cancelled:  # type: ignore[attr-defined]
                heapq.heappop(scheduled)
            if not scheduled:
                raise Stuck("nothing will ever happen again")
            self.now_s = max(self.now_s, scheduled[0]._when)  # type: ignore[attr-defined]
        now_s = self.now_s
        while scheduled and scheduled[0]._when <= now_s:  # type: ignore[attr-defined]
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if not process.alive:
                drop(handle)
                continue
            if process.stopped:
                process.held.append(handle)
                continue
            self.steps += 1
            handle._run()  # type: ignore[attr-defined]
        if self.now_s > self._begun_s + 0.01:
            self._begun_s, self._begun_steps = self.now_s, self.steps
        elif self.steps - self._begun_steps > MOST_STEPS_AT_ONE_MOMENT:
            raise Stuck(f"at {self.now_s:.3f} s something goes on for ever without letting time pass")

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.errors.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    def _write_to_self(self) -> None: ...
    def _process_events(self, _: Any) -> None: ...


@contextmanager
def virtual_world(loop: VirtualLoop, chance: Random) -> Iterator[None]:
    """Clocks of the standard library show virtual time, each process its own; drawn names depend on the seed."""
    wall = Process("world")
    token = PROCESS.set(wall)

    def now_s() -> float:
        return START_S + loop.now_s + PROCESS.get(wall).clock_off_s

    def since_boot_s() -> float:
        return loop.now_s + PROCESS.get(wall).booted_s

    def drawn() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    try:
        with (
            mock.patch.object(time, "time", now_s),
            mock.patch.object(time, "monotonic", since_boot_s),
            mock.patch.object(time, "perf_counter", loop.time),
            mock.patch.object(uuid, "uuid4", drawn),
            mock.patch.object(secrets, "choice", chance.choice),
        ):
            asyncio.set_event_loop(loop)
            yield
    finally:
        asyncio.set_event_loop(None)
        PROCESS.reset(token)
