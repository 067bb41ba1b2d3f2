"""What the leader makes of nodes that come, sleep and go: one kind at a time, each sleep written down with its end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from fairlead import wire
from fairlead.agent.protocol import Backend, Inventory, NodeAction, NodeJoined, NodeLost, NodeSlept
from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.records import JobPhase
from fairlead.control.store import jobs, node_sleep
from fairlead.scheduling.state import Reason, Sleep, Wake

from .stores import Opened, a_job, run, submit


class Engine:
    """As much of a backend as a roster asks for."""

    def __init__(self) -> None:
        self.told: list[tuple[str, NodeAction]] = []
        self.forgot: list[tuple[str, str]] = []
        self.discarded: list[tuple[str, list[str], str]] = []

    async def inventory(self) -> Inventory:
        return Inventory([Node(name, {DEVICE: 1.0}) for name in ("node-0", "node-1")])

    async def node(self, name: str, action: NodeAction) -> None:
        self.told.append((name, action))

    async def forget(self, job: str, node: str) -> None:
        self.forgot.append((job, node))

    async def discard(self, tenant: str, labels: list[str], node: str) -> None:
        self.discarded.append((tenant, labels, node))


def roster(db: Opened) -> tuple[NodeRegistry, Engine, GangRegistry]:
    engine: Any = Engine()
    known = GangRegistry({}, {}, {})
    return NodeRegistry(db.store, engine, known, lambda: 50.0, sleep_after_s=1.0), engine, known


def test_a_node_is_reachable_asleep_or_lost_and_until_then_undecided(db: Opened) -> None:
    found, _, _ = roster(db)
    run(found.refresh())
    assert found.uncertain == {"node-0", "node-1"}
    for name in ("node-0", "node-1"):
        run(found.apply_change(NodeJoined(name, "one", ())))
    assert found.reachable == {"node-0", "node-1"} and not found.uncertain
    run(found.apply_change(NodeSlept("node-1", "one")))
    assert found.reachable == {"node-0"} and found.asleep == {"node-1"} and not found.uncertain
    assert found.nodes["node-1"].asleep and found.nodes["node-1"].schedulable, "gangs may be seated there"
    run(found.apply_change(NodeJoined("node-1", "two", (), woken_in_s=2.0)))
    assert found.asleep == frozenset() and db.read(lambda c: node_sleep.between(c, 0.0, 99.0))[0].woken_in_s == 2.0
    run(found.apply_change(NodeLost("node-0", "one", "gone")))
    assert found.nodes["node-0"].state is NodeState.LOST and found.reachable == {"node-1"}


def test_only_nodes_without_workers_are_sent_to_sleep(db: Opened) -> None:
    found, engine, known = roster(db)
    for name in ("node-0", "node-1"):
        run(found.apply_change(NodeJoined(name, "one", ())))
    known.workers_of("job")["w0"] = WorkerFact("node-0", "starting")
    why = Reason("sleeps", "nobody needs it")

    async def scene() -> None:
        found.apply_sleep_decisions(
            [Sleep("node-0", why), Sleep("node-1", why), Sleep("node-2", why), Wake("node-1", why)]
        )
        await asyncio.gather(*found._commands)

    run(scene())
    assert engine.told == [("node-1", NodeAction.SLEEP)]


class Hung:
    """A backend in which one node answers nothing, and another cannot be fenced."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def release(self, job: str, workers: dict[str, str], *, forget_memory: bool = False) -> None:
        self.asked.append(next(iter(workers.values())))
        await asyncio.Event().wait()

    async def node(self, name: str, action: NodeAction) -> None:
        self.asked.append(name)
        raise OSError(28, "No space left on device")

    async def inventory(self) -> Inventory:
        return Inventory([Node("node-0", {}), Node("node-1", {})])


def test_a_node_that_does_not_answer_or_cannot_be_let_sleep_holds_up_no_pass(db: Opened) -> None:
    engine = Hung()
    found = NodeRegistry(db.store, cast(Backend, engine), GangRegistry({}, {}, {}), lambda: 5.0, 60.0)
    stray = wire.WorkerStatus("nobody-1", "w0", 0, 1, "joined")

    async def scene() -> None:
        async with asyncio.timeout(20.0):
            await found.apply_change(NodeJoined("node-0", "one", [stray]))
            await found.apply_change(NodeJoined("node-1", "one", ()))
            found.apply_sleep_decisions([Sleep("node-1", Reason("sleeps", "nobody needs it"))])
            while len(found._commands) > 1:
                await asyncio.sleep(0)
            assert engine.asked == ["node-0", "node-1"] and "node-0" in found.reachable
            found.close()

    run(scene())


def test_nodes_drop_the_state_of_jobs_that_have_ended_and_of_no_other(db: Opened) -> None:
    found, engine, _ = roster(db)
    for name in ("node-0", "node-1"):
        run(found.apply_change(NodeJoined(name, "one", ())))
    waits, ended = submit(db, a_job("waits")), submit(db, a_job("ended"))
    db.write(lambda connection: jobs.update(connection, ended.id, phase=JobPhase.CANCELLED))
    labels = [f"vision/snapshot/{waits.id}", "vision/snapshot/unknown", "vision/snapshot/../../etc", "vision/dataset/x"]
    found.telemetry["node-0"] = wire.Telemetry(0.0, 0, resident=dict.fromkeys(labels, 9))
    found.telemetry["node-1"] = wire.Telemetry(0.0, 0, resident={f"vision/snapshot/{ended.id}": 9})
    run(found.drop_unneeded_data())
    assert engine.forgot == [(ended.id, "node-1")]


def test_data_that_was_dropped_goes_from_all_nodes_at_once_and_again_while_one_still_has_some(db: Opened) -> None:
    found, engine, _ = roster(db)
    for name in ("node-0", "node-1"):
        run(found.apply_change(NodeJoined(name, "one", ())))
    found.telemetry["node-1"] = wire.Telemetry(
        0.0, 0, resident={"vision/dataset/bank@01": 9, "text/dataset/bank@02": 9}
    )

    async def drop() -> None:
        found.discard("vision", ["dataset/bank@01", "dataset/bank@02"])
        assert found._discarding is not None
        await found._discarding

    run(drop())
    both = ["dataset/bank@01", "dataset/bank@02"]
    assert sorted(engine.discarded) == [("vision", both, "node-0"), ("vision", both, "node-1")]
    engine.discarded.clear()
    run(found.drop_unneeded_data())
    assert engine.discarded == [("vision", ["dataset/bank@01"], "node-1")], "somebody had it open"
    engine.discarded.clear()
    found.telemetry["node-1"] = wire.Telemetry(0.0, 0)
    run(found.drop_unneeded_data())
    assert engine.discarded == []
