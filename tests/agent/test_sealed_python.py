"""Without root a worker is of the user whom Python may belong to: it cannot change the program that it runs in."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from fairlead.agent.sandbox import sealed_python

ATTACK = """
import os, sys
os.chmod("/proc/self/exe", 0o4777)
for deed in (lambda: os.truncate("/proc/self/exe", 0), lambda: os.open("/proc/self/exe", os.O_WRONLY)):
    try:
        deed()
    except OSError:
        pass
    else:
        print("it was changed")
print(sys.prefix)
"""


def test_who_runs_in_a_sealed_program_cannot_change_the_real_one(tmp_path: Path) -> None:
    own = tmp_path / "python"
    shutil.copyfile(os.path.realpath(sys.executable), own)
    own.chmod(0o755)
    before = own.read_bytes()
    with sealed_python.sealed(own) as python:
        done = subprocess.run(
            [sys.executable, "-c", ATTACK], executable=python.path, pass_fds=python.descriptors, check=True, text=True,
            env=os.environ | python.environment, capture_output=True,
        )  # fmt: skip
    assert done.stdout.splitlines() == [sys.prefix]
    assert stat.S_IMODE(own.stat().st_mode) == 0o755 and own.read_bytes() == before


def test_a_program_of_somebody_else_is_run_as_it_is(tmp_path: Path) -> None:
    with sealed_python.program("/usr/bin/env") as found:
        assert (found.path, found.descriptors, found.environment) == ("/usr/bin/env", (), {})
