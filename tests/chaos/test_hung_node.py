"""A node manager that hangs holds up its own gangs and nobody else's."""

from __future__ import annotations

import os
import signal
import time

from tests.chaos.crashable import Crashable, wait_until

AT_MOST_S = 8.0  # a job that is `true` takes well below a second; the node counts as lost after ten


def test_jobs_on_other_nodes_go_on_while_a_node_manager_is_stopped(platform: Crashable) -> None:
    held = [platform.submit(["sleep", "600"], f"hang-{n}", name=f"hang-{n}", tenant="alpha") for n in range(2)]
    wait_until(lambda: len(platform.workers(held[0].id)) == 1, 60, "the first runs")
    manager = platform.node_managers()[next(iter(where(platform, held[0].id)))]
    for job in held[1:]:
        platform.call(lambda client, job=job: client.cancel(job.id))  # type: ignore[misc]
    wait_until(lambda: all(platform.ended(job.id) for job in held[1:]), 60, "the other node is free")
    os.kill(manager, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        quick = platform.submit(["true"], "beside", name="beside", tenant="alpha")
        platform.wait_for_end(quick.id)
        assert time.monotonic() - began_s < AT_MOST_S
        assert platform.state(quick.id) == "succeeded"
    finally:
        os.kill(manager, signal.SIGCONT)
        platform.call(lambda client: client.cancel(held[0].id))
    wait_until(lambda: platform.ended(held[0].id), 90, "it ends")


def where(platform: Crashable, job: str) -> set[str]:
    """The nodes on which a job's workers live."""
    return {node for node, record in platform.node_records().items()
            if any(name.startswith(f"{job}/") for name in record["workers"])}  # fmt: skip
