"""The process that measures this node: ``python -m fairlead.profiling.node_profile ANSWER``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # where the stores are declared

from fairlead.planning.collectives import RING_MESSAGES
from fairlead.profiling.step_overhead import loop_seconds

SIDE = 768
"""Side of the multiplied matrices: large enough for full speed, small enough for a fraction of a second."""

COPIED = 64 << 20
SENT = 8 << 20
PEERS = 2


def measure_node() -> dict[str, Any]:
    """FLOP/s per dtype, memory and disk bandwidth, and the link between two workers of this node (D11)."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "device_name": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "virtual": _virtual(),
        "flops_per_s": {name: _flops(getattr(torch, name)) for name in ("float32", "bfloat16")},
        "memory_bytes_per_s": _memory(),
        "launch_s": _launch(),
        "torch": torch.__version__,
    }
    return found | _disk() | {"links": {"gloo": _link()}, "loop_s": loop_seconds()}


def _best(call: Callable[[], Any], repeats: int = 5) -> float:
    """The shortest CPU time of a few runs: what the machine can do undisturbed."""
    call()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return max(min(times), 1e-9)


def _flops(dtype: torch.dtype) -> float:
    left, right = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    repeats = 5 if dtype is torch.float32 else 1  # bf16 can be a hundred times slower without units for it
    return 2.0 * SIDE**3 / _best(lambda: left @ right, repeats)


def _memory() -> float:
    source = torch.ones(COPIED // 4)
    target = torch.empty_like(source)
    return 2.0 * COPIED / _best(lambda: target.copy_(source))


def _launch() -> float:
    small = torch.ones(8)
    return _best(lambda: [small + 1 for _ in range(1000)]) / 1000


def _disk() -> dict[str, float]:
    block = os.urandom(16 << 20)
    with tempfile.NamedTemporaryFile(prefix="fairlead-disk-") as file:
        begun = time.monotonic()
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = time.monotonic() - begun
        file.seek(0)
        begun = time.monotonic()
        file.read()
        read = time.monotonic() - begun
    speeds = {"disk_write_bytes_per_s": written, "disk_read_bytes_per_s": read}
    return {name: len(block) / max(seconds, 1e-9) for name, seconds in speeds.items()}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "cpu"


def _virtual() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.is_file() and " hypervisor" in cpu.read_text()


def _link() -> dict[str, float]:
    """The link between two processes of this node, through gloo."""
    with tempfile.TemporaryDirectory(prefix="fairlead-link-") as place:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", __spec__.name, "--rank", str(rank), place],
                env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
            )
            for rank in range(PEERS)
        ]  # fmt: skip
        codes = [rank.wait(timeout=120) for rank in ranks]
        answer = Path(place) / "link.json"
        if any(codes) or not answer.is_file():
            raise RuntimeError(f"two processes of this node could not connect to each other (exit codes {codes})")
        found: dict[str, float] = json.loads(answer.read_text())
        return found


def _rank(rank: int, place: str) -> None:
    torch.set_num_threads(1)
    store = c10d.FileStore(f"{place}/store", PEERS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PEERS, timeout=timedelta(seconds=60))
    word, block = torch.ones(1), torch.ones(SENT // 4)
    small = _round_s(lambda: dist.all_reduce(word), 50)
    large = _round_s(lambda: dist.all_reduce(block), 8)
    spent = _handling(block)
    dist.barrier()
    if rank == 0:
        # A sum between two sends the block once each way, in two messages.
        answer = {"latency_s": small / 2, "bytes_per_s": SENT / max(large - small, 1e-9), **spent}
        Path(place, "link.json").write_text(json.dumps(answer))
    dist.destroy_process_group()


def _handling(block: torch.Tensor) -> dict[str, float]:
    """CPU time of an exchange: to start it, per message, per byte; from three exchanges that differ in these."""
    few = torch.ones(PEERS, 64)
    room = torch.empty_like(few)
    direct = _usual(lambda: dist.all_to_all_single(room, few))  # one message to the other
    ring = _usual(lambda: dist.all_reduce(few))  # four
    whole = _usual(lambda: dist.all_reduce(block), 3)
    message_s = max((ring - direct) / (RING_MESSAGES - 1), 0.05 * ring)
    return {
        "step_s": max(direct - message_s, 0.1 * direct), "message_s": message_s,
        "byte_s": max(whole - ring, 0.0) / SENT,
    }  # fmt: skip


def _usual(call: Callable[[], Any], times: int = 30, repeats: int = 5) -> float:
    """The median CPU time of a call: it varies with thread wake-ups, so the minimum says little."""
    call()
    spent = []
    for _ in range(repeats):
        begun = time.process_time()
        for _ in range(times):
            call()
        spent.append((time.process_time() - begun) / times)
    return sorted(spent)[repeats // 2]


def _round_s(call: Callable[[], Any], repeats: int) -> float:
    """Lower quartile of wall times: a link is waited for, which CPU time does not show."""
    call()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 4]


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        _rank(int(sys.argv[2]), sys.argv[3])
    else:
        Path(sys.argv[1]).write_text(json.dumps(measure_node()))
