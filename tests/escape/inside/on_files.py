"""Attempts on files: of the victim, of the platform, of the machine."""

# An attacker calls the system as plainly as can be.
# ruff: noqa: PTH109, PTH112, PTH115, PTH116, PTH208

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from pathlib import Path
from typing import Any

from known import HOME, MAP, VICTIM, attempt, from_any, syscall


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
def walk_out_through_the_root_of_another_process() -> Any:
    return from_any(lambda pid: [name for name in os.listdir(f"/proc/{pid}/root{HOME}") if name != "jobs"] or None)


@attempt
def walk_out_through_an_open_descriptor() -> Any:
    own = (str(HOME / "jobs"), "/dev/null", "/proc", os.getcwd())
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # the one that was listed with
            continue
        if target.startswith("/") and not target.startswith((*own, "/memfd:")):
            return target
    return None


@attempt
def open_a_file_by_its_handle() -> Any:
    handle = struct.pack("=Ii8s", 8, 1, struct.pack("=II", 2, 0))  # inode 2: the root of the disk
    return syscall("open_by_handle_at", os.open("/", os.O_RDONLY), ctypes.c_char_p(handle), os.O_RDONLY)


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
