"""Dividing a machine into virtual nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.agent.embedded.node_shapes import Division, load_division, parse_nodes, save_division
from fairlead.cluster import NodeState
from fairlead.errors import InvalidSpec


def test_a_count_divides_the_machine_into_equal_nodes() -> None:
    shapes = parse_nodes("4", real_cores=2, memory_bytes=1000)
    assert [shape.name for shape in shapes] == ["node-0", "node-1", "node-2", "node-3"]
    assert {(shape.cpu, shape.memory_bytes, shape.devices, shape.speed) for shape in shapes} == {(0.5, 225, 1, 1.0)}


def test_groups_give_unlike_nodes_with_speeds_relative_to_the_fastest() -> None:
    shapes = parse_nodes("2x0.7, 2x0.3", real_cores=2, memory_bytes=1000)
    assert [shape.cpu for shape in shapes] == [0.7, 0.7, 0.3, 0.3]
    assert [shape.speed for shape in shapes] == pytest.approx([1.0, 1.0, 3 / 7, 3 / 7], abs=1e-5)
    assert shapes[0].memory_bytes == 315


def test_a_node_has_a_device_per_whole_core() -> None:
    assert [shape.devices for shape in parse_nodes("2.5,1x1,0.5", real_cores=4)] == [2, 1, 1]


@pytest.mark.parametrize(
    "text",
    ["", "0", "x", "-1", "2x", "x2", "2x0", "0x1", "2x0.7,", "1e3", "nan", "2x0.7;2x0.3", "300", "9999999x1", "²"],
)
def test_what_is_no_division_is_refused_with_value_and_fix(text: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_nodes(text, real_cores=2)
    assert refused.value.field == "nodes" and refused.value.value == text and refused.value.fix


def test_more_cores_than_there_are_is_refused_naming_both_numbers() -> None:
    with pytest.raises(InvalidSpec, match=r"asks for 2\.4 cores, and this machine has 2"):
        parse_nodes("2x0.7,2x0.5", real_cores=2)


@given(st.integers(1, 64), st.integers(1, 128))
def test_equal_nodes_never_exceed_the_machine(count: int, cores: int) -> None:
    shapes = parse_nodes(str(count), real_cores=cores, memory_bytes=10**10)
    assert sum(shape.cpu for shape in shapes) <= cores + 1e-3
    assert sum(shape.memory_bytes for shape in shapes) <= 0.9 * 10**10
    assert all(shape.devices >= 1 and 0 < shape.speed <= 1 for shape in shapes)


def test_shapes_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    assert load_division(path) == Division()
    shapes = parse_nodes("2x0.7,2x0.3", real_cores=2)
    save_division(path, Division(shapes, "none"))
    assert load_division(path) == Division(list(shapes), "none")


def test_a_damaged_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text("{")
    with pytest.raises(InvalidSpec, match="nodes"):
        load_division(path)


def test_groups_of_nodes_may_say_where_they_are() -> None:
    equal = parse_nodes("2@eu,2@us", 4, 8 << 30)
    assert [(node.cpu, node.zone) for node in equal] == [(1.0, "eu"), (1.0, "eu"), (1.0, "us"), (1.0, "us")]
    mixed = [shape.node(NodeState.READY) for shape in parse_nodes("2x0.5@eu+gdpr+old,1", 4, 8 << 30)]
    assert [node.places - {node.name} for node in mixed] == [{"eu", "gdpr", "old"}] * 2 + [{"local"}]
    for wrong in ("2@", "2@eu us", "2@+gdpr"):
        with pytest.raises(InvalidSpec, match="not a zone or label"):
            parse_nodes(wrong, 4, 8 << 30)
