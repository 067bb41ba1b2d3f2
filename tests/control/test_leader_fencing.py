"""The holder of a lease on the same machine is known to be dead as soon as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fairlead.control.reconcile import leader_fencing


def test_this_process_is_not_gone() -> None:
    assert not leader_fencing.is_gone(leader_fencing.this_process())


def test_a_killed_process_is_gone_even_before_it_is_reaped() -> None:
    code = "from fairlead.control.reconcile import leader_fencing as of; print(of.this_process(), flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        assert not leader_fencing.is_gone(holder)
        child.kill()
        child.stdout.read()
        deadline = child.wait  # reaped below; until then it is a zombie, which counts as gone
        while not leader_fencing.is_gone(holder):
            deadline(timeout=60)
    assert leader_fencing.is_gone(holder)


def test_a_holder_on_another_machine_is_never_said_to_be_gone() -> None:
    assert not leader_fencing.is_gone("other-boot:4026531836/1/12345")
    assert not leader_fencing.is_gone("something else")


@pytest.mark.parametrize("how", ["stopped", "at work"])
def test_only_a_stopped_holder_is_fenced(how: str) -> None:
    code = "from fairlead.control.reconcile import leader_fencing as of; print(of.this_process(), flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        if how == "stopped":
            child.send_signal(signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
        leader_fencing.fence(holder.rpartition("/")[0] + "/1")  # another process of the same number, long ago
        assert not leader_fencing.is_gone(holder)
        leader_fencing.fence(holder)
        child.communicate("\n", timeout=60)
        assert child.returncode == (-signal.SIGKILL if how == "stopped" else 0)
    leader_fencing.fence(holder)  # gone by now: nothing to do
    leader_fencing.fence("other-boot:4026531836/1/12345")
