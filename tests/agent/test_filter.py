"""The filter of system calls answers every call as it should, and the kernel takes it."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.agent.sandbox import seccomp
from tests.agent.platforms import needs_sandbox

pytestmark = needs_sandbox


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_answers_every_call_and_only_what_it_should(machine: str) -> None:
    """Interpreted here, instruction by instruction, for both kinds of machine."""
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050001
    program = seccomp.assemble(machine)
    names = ("read", "mount", "clone", "clone3", "socket", "ioctl", "ptrace", "prctl", "fallocate", "inotify_init1",
             "fcntl")  # fmt: skip
    known = {
        "x86_64": (0, 165, 56, 435, 41, 16, 101, 157, 285, 294, 72),
        "aarch64": (63, 40, 220, 435, 198, 29, 117, 167, 47, 26, 25),
    }
    numbers = dict(zip(names, known[machine], strict=True))

    def answer(call: str | int, *arguments: int, on: int = arch[machine]) -> int:
        number = numbers[call] if isinstance(call, str) else call
        return interpret(program, struct.pack("=IIQ6Q", number, on, 0, *(*arguments, *[0] * 6)[:6]))

    assert answer("read") == allow
    assert answer("mount") == answer("ptrace") == refuse
    assert answer("clone3") == 0x00050000 | 38
    assert answer("clone", 0x01200011) == answer("clone", 0x3D0F00) == allow, "fork and thread"
    assert all(answer("clone", 1 << bit) == refuse for bit in (17, 25, 26, 27, 28, 29, 30)), "namespaces"
    assert [answer("socket", family) == allow for family in (1, 2, 10, 16, 17, 38, 40)] == [True] * 4 + [False] * 3
    assert answer("socket", 16, 3, 4) != allow, "netlink for routes only"
    assert answer("ioctl", 0, 0x5412) == answer("ioctl", 0, 0x1234500005412) == refuse, "the upper half changes nothing"
    assert answer("ioctl", 0, 0x5401) == allow
    assert answer("prctl", 29) == refuse, "timers stay gathered"
    assert answer("prctl", 15) == allow
    unsupported = 0x00050000 | 95
    assert [answer("fallocate", 3, mode) == allow for mode in (0, 2 | 1, 8, 16)] == [True] * 4
    assert answer("fallocate", 3, 1) == answer("fallocate", 3, 16 | 1) == unsupported, "unseen by the limit of size"
    assert answer("ioctl", 3, 0x40305828) == answer("ioctl", 3, 0x4030582A) == unsupported, "the same by another name"
    assert answer("ioctl", 3, 0x40305839) == unsupported
    assert answer("ioctl", 3, 0x4030582B) == allow, "to give room back"
    assert answer("inotify_init1") == 0x00050000 | 38
    assert answer("fcntl", 3, 1026) == 0x00050000 | 22
    assert answer("fcntl", 3, 1) == answer("fcntl", 3, 1024) == allow
    assert answer("read", on=0x40000003) == kill, "another architecture's numbers"
    if machine == "x86_64":
        assert answer(0x40000000 + 1) == kill


def interpret(program: bytes, data: bytes) -> int:
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    place, held = 0, 0
    while True:
        kind, yes, no, value = code[place]
        place += 1
        if kind == 0x06:
            return int(value)
        if kind == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[kind]
            place += yes if true else no


def test_the_kernel_takes_the_filter_and_python_lives_under_it() -> None:
    code = (
        "from fairlead.agent.sandbox import linux, seccomp\n"
        "linux.no_new_privileges(); linux.filter_calls(seccomp.program())\n"
        "import subprocess; print(subprocess.check_output(['echo', 'alive'], text=True))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "alive" in done.stdout, done.stderr


def test_a_file_is_followed_under_the_filter(tmp_path: Path) -> None:
    """Who cannot be told of changes looks for them."""
    file = tmp_path / "log"
    file.write_text("first\n")
    code = (
        "from fairlead.agent.sandbox import linux, seccomp\n"
        "linux.no_new_privileges(); linux.filter_calls(seccomp.program())\n"
        f"import os; os.execvp('tail', ['tail', '-s', '0.1', '-f', {str(file)!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None and tail.stdout.readline() == "first\n"
        with file.open("a") as more:
            more.write("second\n")
        assert tail.stdout.readline() == "second\n"
        tail.kill()
