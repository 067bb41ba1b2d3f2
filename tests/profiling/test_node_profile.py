"""A node is measured once and kept; corrections are learned; known device types make hardware one does not own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.errors import InvalidSpec
from fairlead.home import Home
from fairlead.planning.profiles import Link
from fairlead.profiling.device_types import cluster_of, known_device, known_links, known_types
from fairlead.profiling.profile_cache import (
    corrections,
    differs_from_profile,
    local_hardware,
    node_profile,
    quotas,
    record_corrections,
)
from tests.planning.made import model

NODE = {
    "device": "cpu", "device_name": "a processor", "cores": 2, "memory_bytes": 8e9, "virtual": True,
    "flops_per_s": {"float32": 5e10}, "memory_bytes_per_s": 1e10, "launch_s": 4e-6, "disk_write_bytes_per_s": 1e8,
    "disk_read_bytes_per_s": 1e8, "loop_s": 1e-4,
    "links": {"gloo": {"latency_s": 1e-4, "bytes_per_s": 1e9, "step_s": 1e-4, "message_s": 1e-4, "byte_s": 1e-9}},
}  # fmt: skip


def test_a_node_is_measured_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    found = node_profile(home)
    assert found["flops_per_s"]["float32"] > 1e8 and found["memory_bytes_per_s"] > 1e7 and found["cores"] >= 1
    link = found["links"]["gloo"]
    assert 0 < link["latency_s"] < 10 and link["bytes_per_s"] > 1e4 and found["disk_write_bytes_per_s"] > 0
    file = tmp_path / "profiles" / "node.json"
    file.write_text(json.dumps(found | {"cores": 77}))
    assert node_profile(home)["cores"] == 77  # kept, not measured again
    assert differs_from_profile(found, found["flops_per_s"]["float32"] * 3)
    assert not differs_from_profile(found, found["flops_per_s"]["float32"] * 1.1)


def test_workers_of_this_node_share_its_cores_unless_they_have_quotas_or_links() -> None:
    together = local_hardware(NODE, 4)
    assert together.speed(0, busy_on_node=4) == 0.5 and together.speed(0, busy_on_node=1) == 1.0
    apart = local_hardware(NODE, 2, link=Link(1e-3, 25e6), speeds=(2.0, 1.0))
    assert [seat.speed for seat in apart.seats] == [1.0, 0.5]
    assert apart.level([0, 1]) == 1 and apart.links[1].bytes_per_s == 25e6
    assert quotas((1.0,), 4, 2.0) == (0.5, 0.5, 0.5, 0.5)


def test_what_was_measured_corrects_what_is_predicted(tmp_path: Path) -> None:
    home, profile = Home(tmp_path), model()
    assert corrections(home, profile) == {}
    record_corrections(home, profile, {"dp": (2.0, 1.0), "fsdp": (4.0, 1.5), "single": (2.0, 1.0)})
    assert corrections(home, profile) == {"*": 2.0, "dp": 1.0, "fsdp": 3.0, "single": 1.0}
    record_corrections(
        home, profile, {"dp": (1.0, 1.0), "fsdp": (1.0, 3.0)}
    )  # as it was predicted with the corrections
    assert corrections(home, profile) == {"*": 2.0, "dp": 1.0, "fsdp": 3.0, "single": 1.0}
    assert corrections(home, model(5)) == {}


def test_known_types_have_all_that_a_plan_needs() -> None:
    assert {"v100", "a100", "h100", "l4", "t4", "rtx4090"} <= set(known_types())
    for name in known_types():
        device, (near, far) = known_device(name), known_links(name)
        assert device.flops("float32") > 0 and 0 < device.efficiency < 1 and device.memory_bytes > 1e9
        assert near.bytes_per_s >= far.bytes_per_s > 0
    ground = cluster_of([(2, 4, "a100"), (1, 8, "t4")])
    assert len(ground.seats) == 16 and ground.level([0, 3]) == 0 and ground.level([0, 4]) == 1
    with pytest.raises(InvalidSpec) as told:
        cluster_of([(1, 1, "abacus")])
    assert "abacus" in str(told.value) and "a100" in str(told.value.fix)
