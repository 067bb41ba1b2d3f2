"""Old and new understand each other: what processes of the first protocol said and wrote is still read."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from fairlead import local_wire, wire
from fairlead.agent.embedded import host_client
from fairlead.agent.embedded.node_records import HostRecord, NodeRecord, read_host
from fairlead.agent.embedded.node_shapes import load_division
from fairlead.agent.node import messages, processes
from fairlead.agent.node.code_version import code_digest
from fairlead.agent.node.messages import HostRequest, Supply
from fairlead.agent.zygote import worker_bootstrap
from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.control.reconcile.cluster_state import cluster_state
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.home import Home
from fairlead.planning import plan
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import ClusterState, JobState, Preempt, Resize, Start, TenantState
from tests.control import made

FIRST = json.loads(Path(__file__).with_name("protocol-1.json").read_text())
"""Written by the last version that spoke it."""

SCHEMAS_PATH = Path(__file__).with_name("protocol-schemas.json")
SCHEMAS = json.loads(SCHEMAS_PATH.read_text())


@pytest.mark.parametrize("said", FIRST["from_node"])
def test_what_an_older_node_manager_says_is_understood(said: str) -> None:
    message = msgspec.msgpack.decode(base64.b64decode(said), type=wire.FromNode)
    if isinstance(message, wire.Reply) and message.status is not None:
        assert (message.status.protocol, message.status.workers[0].phase) == (1, "joined")


def test_what_an_older_platform_wrote_down_is_understood(tmp_path: Path) -> None:
    record = msgspec.convert(FIRST["record"], NodeRecord)
    assert record.workers["mlp-abc234/w0"].process.pid == 9
    assert msgspec.convert(FIRST["host"], HostRecord).protocol == 1
    request = msgspec.convert(FIRST["supply"], HostRequest)
    assert isinstance(request, Supply) and request.node.protocol == 1
    (tmp_path / "nodes.json").write_text(json.dumps(FIRST["nodes"]))
    assert [shape.name for shape in load_division(tmp_path / "nodes.json").nodes] == ["node-0"]


def test_messages_of_tomorrow_may_have_fields_that_are_not_known_today() -> None:
    status = wire.NodeStatus("node-0", "abc", 3, {}, "cpu", [])
    more = msgspec.to_builtins(status) | {"mood": "good", "protocol": wire.PROTOCOL + 1}
    assert msgspec.convert(more, wire.NodeStatus).protocol == wire.PROTOCOL + 1


def test_a_host_of_another_version_is_retired_and_one_of_this_is_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stranger:
        process = processes.identify(stranger.pid)
        assert process is not None
        same = HostRecord(process.pid, process.started, process.boot, wire.PROTOCOL, code_digest())
        (home.run / "host.pid").write_bytes(msgspec.json.encode(same))
        host_client.retire_host(home)
        assert processes.alive(process) and read_host(home) == same
        (home.run / "host.pid").write_bytes(msgspec.json.encode(process))  # one that does not say is of the first
        host_client.retire_host(home)
        assert not processes.alive(process) and read_host(home) is None


def test_a_host_of_this_protocol_that_would_fork_older_code_is_retired_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stranger:
        process = processes.identify(stranger.pid)
        assert process is not None
        before = HostRecord(process.pid, process.started, process.boot, wire.PROTOCOL, "before a fix")
        (home.run / "host.pid").write_bytes(msgspec.json.encode(before))
        host_client.retire_host(home)
        assert not processes.alive(process) and read_host(home) is None


# ---------------------------------------------------------------- what the protocol is


def schema(*modules: ModuleType) -> str:
    """A digest of all that these modules let travel, wherever they lie: structs with tag, fields and defaults."""
    lines: list[str] = []
    for module in modules:
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__:
                how = kind.__struct_config__
                lines.append(f"{name} {how.tag} {how.array_like} {how.forbid_unknown_fields}")
                own = [one for one in fields(kind) if one.name in kind.__annotations__]
                lines += [f"  {one.name}: {kind.__annotations__[one.name]} = {_default(one)}" for one in own]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _default(field: FieldInfo) -> object:
    return "none" if field.required else field.default if field.default is not NODEFAULT else field.default_factory


def test_messages_do_not_change_within_a_protocol() -> None:
    now = schema(wire, local_wire, messages, worker_bootstrap, plan)
    assert SCHEMAS.get(str(wire.PROTOCOL)) == now, (
        "what workers, nodes and hosts say to each other has changed: count wire.PROTOCOL up, say there what is new, "
        f"and record {now!r} for it in {SCHEMAS_PATH.name}"
    )


# ---------------------------------------------------------------- the scheduler


def cluster(job: JobState, *outdated: str, draining: str | None = None) -> ClusterState:
    nodes = [
        Node(
            f"node-{n}", {"cpu": 1.0, DEVICE: 1.0}, outdated=f"node-{n}" in outdated,
            state=NodeState.DRAINING if draining == f"node-{n}" else NodeState.READY,
        )
        for n in range(3)
    ]  # fmt: skip
    return ClusterState(100.0, nodes, [TenantState("vision")], [job])


RUNS = JobState("mlp", "vision", 0.0, 2, 2, seats=("node-0", "node-1"), elastic=False)


def test_nothing_new_is_put_on_an_outdated_node() -> None:
    waiting = JobState("mlp", "vision", 0.0, 1, 1)
    (decision,) = decide(cluster(waiting, "node-0", "node-2")).decisions
    assert isinstance(decision, Start) and decision.seats == ("node-1",)
    assert not [d for d in decide(cluster(waiting, "node-0", "node-1", "node-2")).decisions if isinstance(d, Start)]


def test_a_gang_on_an_outdated_node_stays_as_it_is_or_moves_whole() -> None:
    """Workers of two versions could not meet."""
    assert not decide(cluster(RUNS, "node-0")).decisions
    broken = JobState("mlp", "vision", 0.0, 1, 2, seats=("node-0",), broken=True)
    (decision,) = decide(cluster(broken, "node-0")).decisions
    assert isinstance(decision, Preempt) and decision.reason.code == "node-outdated"
    (decision,) = decide(cluster(RUNS, "node-0", draining="node-1")).decisions
    assert isinstance(decision, Preempt) and decision.reason.code == "node-draining"
    (decision,) = decide(cluster(RUNS, draining="node-1")).decisions
    assert isinstance(decision, Resize), "of this version, the survivors stay and only one moves"


def test_an_elastic_gang_does_not_grow_out_of_an_outdated_node() -> None:
    job, generation = made.job(max_workers=3), made.generation(("w0", "node-0"))
    facts = {"mlp-abc234": {"w0": WorkerFact("node-0", "joined", 1)}}
    for outdated, grows in ((False, True), (True, False)):
        nodes = [Node("node-0", {DEVICE: 1.0}, outdated=outdated), Node("node-1", {DEVICE: 1.0})]
        state = cluster_state(
            500.0, nodes, [made.tenant("vision")], {}, [job], {"mlp-abc234": [generation]}, facts, frozenset(), {}
        )
        assert state.jobs[0].elastic is grows
