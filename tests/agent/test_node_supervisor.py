"""The supervisor of one node, without a node: back-off, what it reports when, versions, sleep and wake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead import wire
from fairlead.agent.embedded import node_supervisor as module
from fairlead.agent.embedded.node_link import NodeGone
from fairlead.agent.embedded.node_records import HostRecord, NodeRecord
from fairlead.agent.embedded.node_shapes import parse_nodes
from fairlead.agent.embedded.node_supervisor import FROZEN_S, NodeSupervisor
from fairlead.agent.node.processes import Process
from fairlead.agent.protocol import BackendEvent, NodeJoined, NodeLost, NodeSlept, NodeTelemetry, WorkerEvent
from fairlead.errors import FairleadError, LostLeadership, Unavailable
from fairlead.home import Home
from tests.agent.platforms import run

(SHAPE,) = parse_nodes("1", real_cores=4, memory_bytes=1 << 30)
HOST = HostRecord(1, 1, "", wire.PROTOCOL, "build-1")


def status(**changes: Any) -> wire.NodeStatus:
    fields = {"incarnation": "one", "protocol": wire.PROTOCOL, "build": "build-1", "isolation": "user"} | changes
    return wire.NodeStatus(node=SHAPE.name, epoch=1, capacity={}, device_type="cpu", workers=[], **fields)


class Link:
    """A connection to a node manager that answers with a status, or not at all."""

    def __init__(self, workers: int = 0) -> None:
        self.reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_message_s = 0.0
        self.answers = True
        self.requests = 0
        self.closed = False
        self.listener: Callable[[wire.Event], None] = lambda event: None
        self._workers = [wire.WorkerStatus("j", f"w{at}", at, 1, "joined") for at in range(workers)]

    def listen(self, listener: Callable[[wire.Event], None]) -> None:
        self.listener = listener

    async def request(self, body: object, timeout_s: float) -> wire.Reply:
        self.requests += 1
        if not self.answers:
            raise NodeGone("no answer")
        return wire.Reply(1, status=wire.NodeStatus("node-0", "one", 1, {}, "cpu", self._workers))

    def age_s(self, event: wire.Event) -> float | None:
        return None

    async def close(self) -> None:
        self.closed = True


class Supervised:
    """A supervisor whose node is a list of attempts: a status comes up and is lost for the reason, or an error."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.events: list[BackendEvent] = []
        self.fenced: list[int | None] = []
        self.fence_errors: list[BaseException] = []
        self.one = NodeSupervisor(Home(root), SHAPE, 7, self.events.append, **options)
        self.now_s = 1000.0
        monkeypatch.setattr(module, "read_host", lambda home: HOST)
        monkeypatch.setattr(module, "read_record", lambda home, name: None)
        monkeypatch.setattr(module, "fence", self._fence)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s, time=lambda: 5.0))
        self._monkeypatch = monkeypatch

    def _fence(self, home: Home, node: str, epoch: int | None) -> None:
        if self.fence_errors:
            raise self.fence_errors.pop(0)
        self.fenced.append(epoch)

    def comes_up(self, found: wire.NodeStatus | BaseException, why: str = "it died", lives_s: float = 1.0) -> None:
        """Set what the next attempt brings."""

        async def adopt_or_start() -> wire.NodeStatus:
            if isinstance(found, BaseException):
                raise found
            self.one.link = Link()  # type: ignore[assignment]
            return found

        async def wait_until_lost() -> str:
            self.now_s += lives_s
            return why

        self._monkeypatch.setattr(self.one, "_adopt_or_start", adopt_or_start)
        self._monkeypatch.setattr(self.one, "_wait_until_lost", wait_until_lost)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    return Supervised(tmp_path, monkeypatch, restart_s=(0.001, 0.004))


def test_attempts_are_made_ever_more_rarely_up_to_a_limit(node: Supervised) -> None:
    async def scene() -> list[float]:
        delays = []
        for _ in range(5):
            delays.append(node.one._delay_s)
            await node.one._pause()
        return delays

    assert run(scene()) == [0.0, 0.001, 0.002, 0.004, 0.004], "at once after the first loss"


def test_a_node_that_is_asked_for_is_started_without_back_off_and_pays_nothing_for_it(node: Supervised) -> None:
    node.one._delay_s = 3600.0
    node.one.start()
    run(node.one._pause())
    assert node.one._delay_s == 3600.0 and not node.one._retry_now.is_set(), "asked for once"


@pytest.mark.parametrize(("lives_s", "delay_s"), [(120.0, 0.004), (120.1, 0.0)])
def test_only_a_node_that_lived_long_is_restarted_at_once_again(
    node: Supervised, lives_s: float, delay_s: float
) -> None:
    node.one._delay_s = 0.004
    node.comes_up(status(), lives_s=lives_s)
    run(node.one._run_once())
    assert node.one._delay_s == delay_s


def test_a_loss_is_reported_after_the_node_was_fenced_and_not_before(node: Supervised) -> None:
    node.comes_up(status(sequence=4), "its node manager died")
    node.fence_errors = [Unavailable("it clings"), OSError(28, "no space")]
    slept: list[float] = []

    async def no_sleep(seconds: float) -> None:
        slept.append(seconds)
        assert node.one.fencing and node.one.status is None and len(node.events) == 1

    node._monkeypatch.setattr(module.asyncio, "sleep", no_sleep)
    run(node.one._run_once())
    assert slept == [1.0, 1.0] and node.fenced == [7] and not node.one.fencing
    assert node.events == [NodeJoined("node-0", "one", (), 4, None), NodeLost("node-0", "one", "its node manager died")]
    assert node.one.first_attempt_over.is_set() and node.one.link is None


def test_a_node_that_does_not_come_up_is_reported_lost_once_and_only_if_nothing_of_it_lives(node: Supervised) -> None:
    node.comes_up(OSError(11, "no fork"))
    run(node.one._run_once())
    assert node.events == [] and isinstance(node.one.failure, Unavailable), "it may still run"
    assert node.one.first_attempt_over.is_set()
    node.one._fenced = True
    for _ in range(2):
        run(node.one._run_once())
    assert node.events == [NodeLost("node-0", "", "it does not come up: [Errno 11] no fork")]
    node.comes_up(status())
    run(node.one._run_once())
    assert node.one.failure is None
    node.comes_up(Unavailable("no host"))
    run(node.one._run_once())
    lost = [event.why for event in node.events if isinstance(event, NodeLost)]
    assert lost == ["it does not come up: [Errno 11] no fork", "it died"], "its gangs know of the loss already"


def test_a_newer_leader_ends_the_supervision_and_starts_nothing(node: Supervised) -> None:
    node.comes_up(LostLeadership("epoch 8 leads"))
    node.one.link = link = SimpleNamespace(closed=False)  # type: ignore[assignment]

    async def close() -> None:
        link.closed = True

    link.close = close
    run(node.one.run())
    assert isinstance(node.one.failure, LostLeadership) and node.one.first_attempt_over.is_set()
    assert link.closed and node.one.link is None and node.fenced == [] and node.events == []


def test_a_newer_leader_is_not_fenced_against(node: Supervised) -> None:
    node.fence_errors = [LostLeadership("epoch 8 leads")]
    with pytest.raises(LostLeadership):
        run(node.one._fence_until_done())


# ---------------------------------------------------------------- adopt or start


def record(isolation: str, cpu: float = SHAPE.cpu) -> NodeRecord:
    capacity = SHAPE.capacity() | {"cpu": cpu}
    return NodeRecord("node-0", "one", 1, Process(1, 1), capacity, isolation=isolation)


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        ("auto", "sandbox", True), ("auto", "none", True), ("sandbox", "sandbox", True), ("sandbox", "user", False),
        ("user", "sandbox", False), ("none", "user", True), ("none", "", True), ("none", "sandbox", False),
    ],
)  # fmt: skip
def test_a_running_node_is_adopted_if_its_isolation_is_the_wanted_one(
    node: Supervised, wanted: str, found: str, fits: bool
) -> None:
    node.one.require_isolation(wanted)
    assert node.one._is_compatible(record(found)) == fits
    assert not node.one._is_compatible(record(found, cpu=SHAPE.cpu + 1)), "another division of the machine"


@pytest.mark.parametrize(
    ("changes", "outdated"),
    [({}, False), ({"build": "build-0"}, True), ({"protocol": wire.PROTOCOL - 1}, True)],
)
def test_a_node_is_outdated_if_the_host_would_fork_other_code(
    node: Supervised, changes: dict[str, Any], outdated: bool
) -> None:
    node.one.status = status(**changes)
    assert node.one.outdated == (changes.get("protocol", wire.PROTOCOL) != wire.PROTOCOL), "no host is known yet"
    node.one.refresh_host()
    assert node.one.outdated == outdated


def test_an_outdated_node_stays_so_while_it_is_restarted_but_not_while_it_sleeps(node: Supervised) -> None:
    node.comes_up(status(protocol=wire.PROTOCOL - 1))
    run(node.one._run_once())
    assert node.one.status is None and node.one.outdated
    node.one.asleep = True
    assert not node.one.outdated
    node.one.asleep = False
    node.comes_up(status())
    run(node.one._run_once())
    assert not node.one.outdated


# ---------------------------------------------------------------- loss


def waiting(node: Supervised, prepare: Callable[[Link], None], rounds: int = 1) -> tuple[str, Link, list[float]]:
    """Why the node is lost, its link, and how long each round would have waited for it to close."""
    timeouts: list[float] = []

    async def scene() -> tuple[str, Link]:
        link = Link()
        link.last_message_s = node.now_s
        node.one.link = link  # type: ignore[assignment]

        async def wait(futures: Any, *, timeout: float) -> None:
            timeouts.append(timeout)
            if len(timeouts) == rounds:
                prepare(link)

        node._monkeypatch.setattr(module.asyncio, "wait", wait)
        return await node.one._wait_until_lost(), link

    why, link = run(scene())
    return why, link, timeouts


def test_a_silent_node_is_lost_only_if_it_does_not_answer_either(node: Supervised) -> None:
    node.one.status = status()

    def silent(link: Link) -> None:
        link.answers = False
        node.now_s += FROZEN_S + 0.1

    why, link, timeouts = waiting(node, silent)
    assert why == "its node manager has been silent for 10 s" and link.requests == 1 and timeouts == [FROZEN_S]


def test_a_leader_that_was_stopped_does_not_take_its_nodes_for_silent(node: Supervised) -> None:
    node.one.status = status()

    async def gone() -> bool:
        return False

    node._monkeypatch.setattr(node.one, "_reconnect", gone)

    async def scene() -> tuple[str, Link, list[float]]:
        timeouts: list[float] = []
        node.one.link = link = Link()  # type: ignore[assignment]
        link.last_message_s = node.now_s - 1000.0

        async def wait(futures: Any, *, timeout: float) -> None:
            timeouts.append(timeout)
            if len(timeouts) == 3:
                link.reading.set_result(None)

        node._monkeypatch.setattr(module.asyncio, "wait", wait)
        return await node.one._wait_until_lost(), link, timeouts

    why, link, timeouts = run(scene())
    assert why == "its node manager died" and link.requests == 2, "it was asked, and answered, as long as it was there"
    assert timeouts == [1.0, 1.0, 1.0], "old silence is looked at every second"


def test_a_line_that_closes_is_a_loss_only_if_the_node_manager_cannot_be_reached_again(node: Supervised) -> None:
    node.one.status = status()
    tries = [True, False]

    async def reconnect() -> bool:
        return tries.pop(0)

    node._monkeypatch.setattr(node.one, "_reconnect", reconnect)
    why, _, timeouts = waiting(node, lambda link: link.reading.set_result(None))
    assert why == "its node manager died" and tries == [] and len(timeouts) == 2


def test_an_outdated_node_is_restarted_when_it_is_empty(node: Supervised) -> None:
    node.one.status = status(build="build-0")
    node.one.refresh_host()
    empty = [False, True]

    async def is_empty() -> bool:
        return empty.pop(0)

    node._monkeypatch.setattr(node.one, "_is_empty", is_empty)
    why, _, timeouts = waiting(node, lambda link: None)
    assert why == "it ran another version and is restarted now that it is empty"
    assert timeouts == [1.0, 1.0] and node.one._retry_now.is_set(), "looked at every second, restarted without back-off"


@pytest.mark.parametrize(("workers", "answers", "empty"), [(0, True, True), (1, True, False), (0, False, False)])
def test_a_node_is_empty_only_if_it_says_so(node: Supervised, workers: int, answers: bool, empty: bool) -> None:
    async def scene() -> bool:
        node.one.link = link = Link(workers)  # type: ignore[assignment]
        link.answers = answers
        return await node.one._is_empty()

    assert run(scene()) == empty
    node.one.link = None
    assert not run(node.one._is_empty())


# ---------------------------------------------------------------- events


def test_events_that_come_again_are_passed_on_once_and_telemetry_always(node: Supervised) -> None:
    def event(sequence: int, body: Any) -> wire.Event:
        return wire.Event(sequence, 5.0, body, "j", "w0")

    async def scene() -> None:
        node.one.link = link = Link()  # type: ignore[assignment]
        node.one._listen("one")
        for sequence in (1, 2, 1, 2, 3):
            link.listener(event(sequence, wire.Exited(sequence)))
        for _ in range(2):
            link.listener(event(0, wire.Telemetry(0.5, 1, warm=True)))

    run(scene())
    ends = [each for each in node.events if isinstance(each, WorkerEvent)]
    assert [(each.sequence, each.body, each.time_s) for each in ends] == [
        (number, wire.Exited(number), 5.0) for number in (1, 2, 3)
    ]
    assert len([each for each in node.events if isinstance(each, NodeTelemetry)]) == 2
    assert node.one.telemetry == wire.Telemetry(0.5, 1, warm=True)


def test_the_isolation_is_read_when_the_fork_server_comes_or_goes(node: Supervised) -> None:
    found = [record("sandbox"), replace_fork_server(record("sandbox"), 2)]
    node._monkeypatch.setattr(module, "read_record", lambda home, name: found.pop(0))

    async def scene() -> list[str]:
        node.one.link = link = Link()  # type: ignore[assignment]
        node.one._listen("one")
        seen = []
        for warm in (False, False, True, True):
            link.listener(wire.Event(0, 0.0, wire.Telemetry(0.0, 0, warm=warm)))
            seen.append(node.one.isolation)
        return seen

    assert run(scene()) == ["sandbox", "sandbox", "sandbox, cgroups v2", "sandbox, cgroups v2"] and found == []


def replace_fork_server(found: NodeRecord, version: int) -> NodeRecord:
    import msgspec

    return msgspec.structs.replace(found, fork_server=Process(2, 2), version=version)


# ---------------------------------------------------------------- sleep and wake


def test_a_node_sleeps_only_if_it_is_empty_and_says_that_it_sleeps_when_its_processes_are_gone(
    node: Supervised,
) -> None:
    async def scene() -> None:
        await node.one.sleep()
        assert not node.one.asleep and node.fenced == [], "it is not there"
        node.one.link = Link(workers=1)  # type: ignore[assignment]
        await node.one.sleep()
        assert not node.one.asleep and node.fenced == []
        node.one.link = Link()  # type: ignore[assignment]
        await node.one.sleep()
        await node.one.sleep()
        assert node.one.asleep and node.fenced == [7] and not node.one._wanted.is_set()

    run(scene())
    node.comes_up(status())

    async def asleep_meanwhile() -> str:
        node.one.asleep = True
        return "its node manager died"

    node._monkeypatch.setattr(node.one, "_wait_until_lost", asleep_meanwhile)
    run(node.one._run_once())
    assert node.events[-1] == NodeSlept("node-0", "one")


def test_waking_is_measured_from_the_first_request(node: Supervised) -> None:
    node.one.wake()
    assert not node.one.waking, "it does not sleep"
    node.one.asleep = True
    node.one.wake()
    node.now_s += 2.0
    node.one.wake()
    node.now_s += 0.5
    assert node.one.waking and node.one._wanted.is_set() and node.one._retry_now.is_set()
    node.comes_up(status())
    run(node.one._run_once())
    joined = node.events[0]
    assert isinstance(joined, NodeJoined) and joined.woken_in_s == pytest.approx(2.5)
    assert not node.one.waking and not node.one.asleep
    node.comes_up(status())
    run(node.one._run_once())
    again = node.events[2]
    assert isinstance(again, NodeJoined) and again.woken_in_s is None, "it did not sleep"


def test_a_node_that_cannot_be_woken_is_lost(node: Supervised) -> None:
    node.one.asleep = True
    node.comes_up(Unavailable("no host"))
    run(node.one._run_once())
    assert node.events == [] and not node.one.asleep, "nobody has asked for it"
    node.one.asleep = True
    node.one.wake()
    run(node.one._run_once())
    assert node.events == [NodeLost("node-0", "", "it could not be woken: no host")] and not node.one.waking


@pytest.mark.parametrize("stay_down", [True, False])
def test_a_stopped_node_comes_back_unless_it_is_to_stay_down(node: Supervised, stay_down: bool) -> None:
    run(node.one.stop(stay_down=stay_down))
    assert node.fenced == [7] and node.one._wanted.is_set() != stay_down
    node.one.start()
    assert node.one._wanted.is_set()


def test_a_node_that_cannot_be_fenced_says_so_and_why(node: Supervised) -> None:
    node.fence_errors = [OSError(28, "no space")]
    with pytest.raises(FairleadError, match=r"node-0 cannot be fenced: .*no space"):
        run(node.one.stop(stay_down=False))
