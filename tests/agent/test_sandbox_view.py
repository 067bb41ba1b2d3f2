"""What a worker sees of the machine from inside its tenant's sandbox, its virtual environment included."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import wire
from fairlead.agent.sandbox import bwrap_args
from fairlead.local_wire import PlacedSpec
from tests.agent.platforms import OTHER_UID, TELL, needs_sandbox, platform, python, run, told

pytestmark = needs_sandbox


# ---------------------------------------------------------------- what it sees


def test_a_worker_sees_the_system_python_and_its_own_folders_and_nothing_else(home: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    (open_to_all / "file").write_text("readable by everybody on this machine")
    code = """
job = os.path.dirname(os.environ["FAIRLEAD_OUTPUT"])
tell(root=sorted(os.listdir("/")), home=os.listdir(sys.argv[1]), jobs=os.listdir(os.path.dirname(job)),
     etc=sorted(os.listdir("/etc")), dev=os.listdir("/dev"), shm=os.listdir("/dev/shm"), here=os.getcwd(),
     others=os.path.exists(sys.argv[2]), tmp=os.environ["TMPDIR"], own=os.environ["HOME"],
     who=__import__("pwd").getpwuid(os.getuid()).pw_name, machine=__import__("socket").gethostname())
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            await here.start("j", ["node-0"], *python(TELL + code), str(home), str(open_to_all / "file"), cpu=1.0)
            await here.some(wire.Exited)
            seen = json.loads(await here.log("j"))
            assert set(seen["root"]) <= {
                "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "sys", "dev", "tmp", "var",
                *(path.parts[1] for path in [*bwrap_args.pythons(), home]),
                *(Path(path).parts[1] for path in [os.environ.get("FAIRLEAD_DATA")] if path),
            }  # fmt: skip
            assert seen["home"] == ["jobs"] and seen["jobs"] == ["j"] and not seen["others"]
            assert "shadow" not in seen["etc"] and "passwd" in seen["etc"]
            assert not {"mem", "kmem", "vda", "sda", "fuse", "kvm"} & set(seen["dev"])
            assert seen["shm"] == [here.home.memory.name]
            assert seen["here"] == str(here.home.job("j") / "code")
            assert (seen["who"], seen["machine"], seen["tmp"]) == ("vision", "fairlead", "/tmp")
            assert seen["own"] == str(here.home.job("j") / "home")

    run(scene())


def test_what_it_may_read_it_may_not_write(home: Path) -> None:
    name = f"new-{uuid.uuid4().hex}"  # others use the machine's /tmp too
    code = (
        f"NAME = {name!r}\n"
        + """
def writes(folder):
    try:
        open(os.path.join(folder, NAME), "w").close()
    except OSError:
        return False
    return True
job = os.path.dirname(os.environ["FAIRLEAD_OUTPUT"])
tell(writable=[place for place in [
     "/", "/usr", "/etc", "/sys", "/proc", sys.prefix, job, job + "/logs", job + "/output",
     job + "/code", job + "/home", job + "/snapshots", "/tmp", "/dev/shm", os.path.dirname(os.__file__)]
     if writes(place)])
"""
    )

    async def scene() -> None:
        async with platform(home, "1") as here:
            job = str(here.home.job("j"))
            found = (await told(here, "j", code, cpu=1.0))["writable"]
            own = [job + "/output", job + "/code", job + "/home", job + "/snapshots", "/tmp", "/dev/shm"]
            assert found == own
            assert (here.home.job("j") / "tmp" / name).exists(), "/tmp is on disk, in the job's own folder"
            assert not (Path("/tmp") / name).exists() and not (Path("/dev/shm") / name).exists()

    run(scene())


@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["open", "closed"])
def test_a_granted_folder_is_seen_by_its_tenant_only_and_never_written(home: Path, tmp_path: Path, mode: int) -> None:
    """Also when it lies where the tenant's user would not get to by itself."""
    data = tmp_path / "vault" / "images"
    data.mkdir(parents=True)
    (data / "cat.txt").write_text("meow")
    (data.parent / "secret.txt").write_text("not granted")
    data.chmod(0o755)
    data.parent.chmod(mode)
    code = f"""
try:
    open({str(data / "dog.txt")!r}, "w"); wrote = True
except OSError:
    wrote = False
tell(text=open({str(data / "cat.txt")!r}).read() if os.path.exists({str(data)!r}) else None, wrote=wrote,
     beside=os.path.exists({str(data.parent / "secret.txt")!r}))
"""

    async def scene() -> None:
        async with platform(home, "1") as here:
            assert await told(here, "a", code, folders=[str(data)]) == {"text": "meow", "wrote": False, "beside": False}
            assert await told(here, "b", code, uid=OTHER_UID) == {"text": None, "wrote": False, "beside": False}
            gone = await told(here, "c", code, folders=[str(tmp_path / "nowhere")])
            assert gone["text"] is None, "a folder that is not there is not shown, and stops nobody"

    run(scene())


@pytest.mark.parametrize("folder", ["/proc", "/proc/1", "/dev", "/tmp", "/etc/ssl", "/usr", "/sys/kernel", "/dev/shm"])
def test_a_grant_that_would_cover_the_sandboxs_own_is_refused(folder: str) -> None:
    with pytest.raises(bwrap_args.CannotStart, match="grant another"):
        bwrap_args.grants(spec(folders=[folder]))


def test_a_grant_around_the_platforms_home_does_not_show_the_platform(home: Path) -> None:
    code = f"tell(seen=sorted(os.listdir({str(home)!r})))"

    async def scene() -> None:
        async with platform(home, "1") as here:
            assert await told(here, "j", code, folders=[str(home.parent)]) == {"seen": ["jobs"]}

    run(scene())


# ---------------------------------------------------------------- a virtual environment


def spec(**changes: Any) -> PlacedSpec:
    fields: dict[str, Any] = {
        "job": "j", "tenant": "t", "uid": 1, "run": None, "command": ["x"], "params": {}, "env": {}, "venv": None,
        "bundle": None, "folder": "/f", "memory_folder": "/m/j/n", "cpu": 1.0,
    }  # fmt: skip
    return PlacedSpec(**(fields | changes))


def venv(folder: Path, base: Path = Path("/usr/bin")) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(base / "python3")
    (folder / "pyvenv.cfg").write_text(f"home = {base}\nversion = 3\n")
    return folder


@pytest.fixture
def open_way(tmp_path: Path) -> Iterator[None]:
    """The folders above are closed to others, which other tests count on: open for this one only."""
    before = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in (tmp_path, *tmp_path.parents[:3])}
    for folder in before:
        folder.chmod(0o755)
    yield
    for folder, mode in before.items():
        folder.chmod(mode)


@pytest.mark.usefixtures("open_way")
def test_a_virtual_environment_that_is_none_or_a_strangers_is_refused(tmp_path: Path) -> None:
    stranger, elsewhere = venv(tmp_path / "stranger"), venv(tmp_path / "elsewhere", tmp_path / "python" / "bin")
    fine, plain = venv(tmp_path / "fine"), tmp_path / "plain"
    plain.mkdir()
    if os.geteuid() == 0:
        os.chown(stranger, 4711, 4711)
        with pytest.raises(bwrap_args.CannotStart, match=r"is neither.*fairlead tenant update t --grant"):
            bwrap_args.virtual_environment(spec(venv=str(stranger)), [])
        assert bwrap_args.virtual_environment(spec(venv=str(stranger)), [tmp_path])
    assert bwrap_args.virtual_environment(spec(venv=str(fine)), []) == [fine]
    odd = [Path(f"{fine}/../fine"), Path("/a\0b"), Path("/\ud800")]
    wrongs = [(place, "not a virtual") for place in (plain, Path("/etc"), *odd)]
    for wrong, why in (*wrongs, (elsewhere, "cannot see")):
        with pytest.raises(bwrap_args.CannotStart, match=why):
            bwrap_args.virtual_environment(spec(venv=str(wrong)), [])
    os.mkfifo(plain / "pyvenv.cfg")
    with pytest.raises(bwrap_args.CannotStart, match="not a virtual"):
        bwrap_args.virtual_environment(spec(venv=str(plain)), [])


@pytest.mark.usefixtures("open_way")
def test_a_virtual_environment_that_could_be_exchanged_after_the_look_is_refused(tmp_path: Path) -> None:
    linked = tmp_path / "link"
    linked.symlink_to(venv(tmp_path / "fine"))
    with pytest.raises(bwrap_args.CannotStart, match="leads through a link"):
        bwrap_args.virtual_environment(spec(venv=str(linked)), [])
    assert bwrap_args.virtual_environment(spec(venv=str(linked)), [tmp_path]) == [linked], "seen with what was granted"
    of_a_job = venv(tmp_path / "home" / "jobs" / "j" / "output" / "venv")
    with pytest.raises(bwrap_args.CannotStart, match="could replace it"):
        bwrap_args.virtual_environment(spec(venv=str(of_a_job)), [], [tmp_path / "home"])
    anybodys = venv(tmp_path / "shared" / "venv")
    anybodys.parent.chmod(0o777)
    with pytest.raises(bwrap_args.CannotStart, match="could replace it"):
        bwrap_args.virtual_environment(spec(venv=str(anybodys)), [])
    if os.geteuid() == 0:
        anybodys.parent.chmod(0o755)
        os.chown(anybodys.parent, 4711, 4711)
        with pytest.raises(bwrap_args.CannotStart, match="could replace it"):
            bwrap_args.virtual_environment(spec(venv=str(anybodys)), [])
