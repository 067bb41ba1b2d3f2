"""Caches the plans that the planner chose: the same model on the same devices is asked about once."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.control.plans.plan_questions import ChooseQuestion, GlanceQuestion
from fairlead.control.plans.planner_process import Planner, Question
from fairlead.planning.profiles import Hardware

MOST = 256  # answers of some kilobytes each


class PlanCache:
    """A planner that is asked once which plan suits a gang, however many such gangs there are.

    An answer or a failure that came too late for one caller is kept for the next.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._asked: OrderedDict[bytes, Future[Any]] = OrderedDict()

    def ask(self, tenant: str, question: Question, kind: Any) -> Future[Any]:
        if not isinstance(question, ChooseQuestion | GlanceQuestion):
            return self._planner.ask(tenant, question, kind)
        question = replace(question, hardware=_without_node_names(question.hardware))
        try:
            mark = blake2b(tenant.encode() + b"\0" + msgspec.msgpack.encode(question)).digest()
        except (TypeError, ValueError, OverflowError, RecursionError):
            return self._planner.ask(tenant, question, kind)  # reports what is wrong with it
        asked = self._asked.pop(mark, None) or self._planner.ask(tenant, question, kind)
        if not (asked.done() and (asked.cancelled() or asked.exception() is not None)):  # a failure is not kept
            self._asked[mark] = asked
        if len(self._asked) > MOST:
            self._asked.popitem(last=False)
        return _separate_future(asked)

    def warm(self) -> None:
        self._planner.warm()

    def close(self) -> None:
        self._planner.close()


def _without_node_names(hardware: Hardware) -> Hardware:
    """The same devices at the same distances, with numbers for the names of nodes."""
    names: dict[str, str] = {}
    seats = tuple(
        replace(seat, node=names.setdefault(seat.node, f"{len(names)}"),
                path=tuple(names.setdefault(part, f"{len(names)}") for part in seat.path))
        for seat in hardware.seats
    )  # fmt: skip
    return replace(hardware, seats=seats, cores={names.get(node, node): n for node, n in hardware.cores.items()})


def _separate_future(asked: Future[Any]) -> Future[Any]:
    """A future with the same answer that one caller may cancel for itself."""
    own: Future[Any] = Future()

    def answered(done: Future[Any]) -> None:
        if done.cancelled():
            own.cancel()
        if not own.set_running_or_notify_cancel():
            return
        if (error := done.exception()) is not None:
            own.set_exception(error)
        else:
            own.set_result(done.result())

    asked.add_done_callback(answered)
    return own
