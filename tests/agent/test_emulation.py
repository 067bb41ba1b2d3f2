"""Emulated links and quotas are there while they are needed, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead.agent.embedded.emulation import INTERFACE, emulated
from fairlead.errors import Refused

able = os.geteuid() == 0 and shutil.which("tc") is not None and shutil.which("ip") is not None


def namespaces() -> set[str]:
    found = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in found.splitlines() if line.startswith(f"fl{os.getpid()}-")}


@pytest.mark.skipif(not able, reason="needs root, ip and tc")
def test_every_worker_has_a_slow_link_and_its_part_of_a_core() -> None:
    with emulated(2, 25e6, 0.0, [0.5, 0.25]) as places:
        assert len(namespaces()) == 3  # the workers' and the one in the middle
        for place, quota in zip(places, (5000, 2500), strict=True):
            assert place.namespace is not None and place.interface == INTERFACE
            name = Path(place.namespace).name
            shown = subprocess.run(["tc", "-n", name, "qdisc"], capture_output=True, text=True, check=True).stdout
            assert "tbf" in shown and "200Mbit" in shown
            limits = [file.read_text().split()[0] for folder in place.cgroups for file in _limits(Path(folder))]
            assert limits == [str(quota)]
    assert not namespaces() and not any(Path(folder).exists() for place in places for folder in place.cgroups)


def _limits(folder: Path) -> list[Path]:
    return [file for file in (folder / "cpu.cfs_quota_us", folder / "cpu.max") if file.exists()]


@pytest.mark.skipif(not able, reason="needs root, ip and tc")
def test_workers_reach_each_other_through_the_bridge() -> None:
    with emulated(2, 125e6, 0.0, []) as places:
        name = Path(str(places[0].namespace)).name
        code = "import socket; s = socket.create_server(('', 5000)); s.settimeout(60); print('up', flush=1); s.accept()"
        inside = ["ip", "netns", "exec", name, "python3", "-c", code]
        with subprocess.Popen(inside, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None and server.stdout.readline() == "up\n"
            other = Path(str(places[1].namespace)).name
            call = "import socket; socket.create_connection(('10.213.0.1', 5000), 60)"
            subprocess.run(["ip", "netns", "exec", other, "python3", "-c", call], check=True, timeout=120)
            assert server.wait(timeout=120) == 0


@pytest.mark.skipif(not able, reason="needs root, ip and tc")
def test_latency_is_added_or_refused_with_a_fix() -> None:
    try:
        with emulated(1, 125e6, 0.001, []) as places:
            name = Path(str(places[0].namespace)).name
            assert "netem" in subprocess.run(["tc", "-n", name, "qdisc"], capture_output=True, text=True).stdout
    except Refused as refused:
        assert "netem" in str(refused) and refused.fix
    assert not namespaces()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do it")
def test_without_root_it_is_refused_with_a_fix() -> None:
    with pytest.raises(Refused) as refused, emulated(2, 25e6, 0.0, []):
        pass
    assert "root" in str(refused.value.fix)
