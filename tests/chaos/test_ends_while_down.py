"""A job that ends while no control plane is there is booked, and judged, by when it ended."""

from __future__ import annotations

import time

from tests.chaos.crashable import Crashable, kill, wait_until

DOWN_S = 6.0  # after the job's end


def test_a_job_that_ends_while_the_control_plane_is_down_is_booked_at_its_end(platform: Crashable) -> None:
    script = "sleep 2; touch $FAIRLEAD_OUTPUT/ended; exit 3"
    job = platform.submit(["sh", "-c", script], "brief", name="brief", tenant="alpha")
    wait_until(lambda: platform.state(job.id) == "running", 60, "it runs")
    kill(platform.control_pid)
    ended = platform.home / "jobs" / job.id / "output" / "ended"
    wait_until(ended.exists, 60, "it has ended")
    ended_s = ended.stat().st_mtime
    wait_until(lambda: time.time() > ended_s + DOWN_S, 60, "nobody was there for a while")
    platform.up()
    platform.wait_for_end(job.id)
    detail = platform.call(lambda client: client.detail(job.id))
    assert detail.state == "failed" and "exit code 3" in str(detail.message)
    assert detail.finished_s is not None
    assert abs(detail.finished_s - ended_s) < DOWN_S / 3
    used = platform.call(lambda client: client.usage("job", tenant="alpha"))
    (device_s,) = [3600 * line.device_hours for line in used.lines if line.keys["job"] == job.id]
    held_s = ended_s - detail.generations[0].created_s
    assert abs(device_s - held_s) < DOWN_S / 3, "nobody held the device when it was over"
