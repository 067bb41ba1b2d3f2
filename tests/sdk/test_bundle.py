"""Promises about code bundles: the same folder is the same hash, and nothing goes along that should not."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from fairlead.errors import FairleadError, InvalidSpec, NotFound, TooLarge
from fairlead.sdk.bundle import Bundle, pack


def make(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def opened(bundle: Bundle) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(bundle.bytes), mode="r:gz")


def files(bundle: Bundle) -> set[str]:
    return {member.name for member in opened(bundle).getmembers() if not member.isdir()}


def test_the_same_folder_gives_the_same_hash_wherever_and_whenever_it_is_packed(tmp_path: Path) -> None:
    content = {"train.py": "x = 1\n", "data/a.csv": "1,2\n", "data/b.csv": "3,4\n"}
    first = make(tmp_path / "first", content)
    second = make(tmp_path / "elsewhere" / "second", dict(reversed(content.items())))
    os.utime(second / "train.py", (1, 1))
    (second / "train.py").chmod(0o600)
    assert pack(first) == pack(second)
    assert pack(first).digest.startswith("sha256:")


def test_another_content_name_or_executable_bit_gives_another_hash(tmp_path: Path) -> None:
    folder = make(tmp_path, {"a.py": "x = 1\n"})
    digests = {pack(folder).digest}
    (folder / "a.py").chmod(0o755)
    digests.add(pack(folder).digest)
    (folder / "a.py").write_text("x = 2\n")
    digests.add(pack(folder).digest)
    (folder / "a.py").rename(folder / "b.py")
    digests.add(pack(folder).digest)
    assert len(digests) == 4


def test_nothing_of_the_packing_machine_is_in_the_bundle(tmp_path: Path) -> None:
    folder = make(tmp_path, {"run.sh": "echo\n", "a.py": "x\n"})
    (folder / "run.sh").chmod(0o750)
    for member in opened(pack(folder)).getmembers():
        assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
        assert member.mode == (0o755 if member.name == "run.sh" else 0o644)


def test_what_nobody_means_to_send_stays_at_home(tmp_path: Path) -> None:
    folder = make(
        tmp_path,
        {
            "train.py": "x\n", ".git/config": "x", "__pycache__/train.cpython-311.pyc": "x", "old.pyc": "x",
            ".venv/lib/big.py": "x", "node_modules/p/i.js": "x", "env3/pyvenv.cfg": "x", "env3/lib/y.py": "x",
            "pkg/__pycache__/z.pyc": "x", "pkg/z.py": "x", ".fairlead/profile.json": "secret",
        },
    )  # fmt: skip
    assert files(pack(folder)) == {"train.py", "pkg/z.py"}


def test_a_link_to_a_virtual_environment_elsewhere_stays_at_home_too(tmp_path: Path) -> None:
    make(tmp_path, {"shared/pyvenv.cfg": "x"})
    folder = make(tmp_path / "work", {"train.py": "x\n"})
    (folder / ".venv").symlink_to(tmp_path / "shared")
    assert files(pack(folder)) == {"train.py"}


def test_a_platforms_home_never_goes_along_whatever_its_name(tmp_path: Path) -> None:
    folder = make(tmp_path / "work", {"train.py": "x\n", "platform/profile.json": "secret"})
    assert files(pack(folder, home=folder / "platform")) == {"train.py"}


def test_the_ignore_file_follows_git_and_may_bring_back_what_is_ignored_by_default(tmp_path: Path) -> None:
    folder = make(
        tmp_path,
        {
            ".fairleadignore": "# comment\n*.csv\n!keep.csv\n/only-here\nlogs/\n!*.pyc\n",
            "a.csv": "x", "keep.csv": "x", "only-here": "x", "sub/only-here": "x", "logs/l.txt": "x", "m.pyc": "x",
        },
    )  # fmt: skip
    assert files(pack(folder)) == {".fairleadignore", "keep.csv", "sub/only-here", "m.pyc"}


def test_an_ignore_file_within_a_folder_counts_from_there_and_goes_before_those_above(tmp_path: Path) -> None:
    folder = make(
        tmp_path,
        {
            ".fairleadignore": "*.bin\n/gone/\n!old.pyc\n",
            "sub/.fairleadignore": "/here.txt\n!small.bin\ncache/\n",
            "sub/deep/.fairleadignore": "!cache/\nsmall.bin\nold.pyc\n",
            "gone/.fairleadignore": "!*\n", "gone/a.txt": "x",  # what is left out is not looked into
            "big.bin": "x", "small.bin": "x", "here.txt": "x", "old.pyc": "x", "cache/a": "x",
            "sub/big.bin": "x", "sub/small.bin": "x", "sub/here.txt": "x", "sub/old.pyc": "x", "sub/cache/a": "x",
            "sub/deep/small.bin": "x", "sub/deep/here.txt": "x", "sub/deep/old.pyc": "x", "sub/deep/cache/a": "x",
            "beside/small.bin": "x", "beside/here.txt": "x",
        },
    )  # fmt: skip
    kept = {name for name in files(pack(folder)) if not name.endswith(".fairleadignore")}
    assert kept == {
        "here.txt", "old.pyc", "cache/a", "beside/here.txt",
        "sub/small.bin", "sub/old.pyc", "sub/deep/here.txt", "sub/deep/cache/a",
    }  # fmt: skip


def test_nested_ignore_files_leave_out_what_git_leaves_out(tmp_path: Path) -> None:
    """The same rules as .gitignore and as .fairleadignore; git itself says what goes along."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git here")
    rules = {
        "": "*.log\n/top\nbuild/\ndoc/*.txt\n!doc/read.txt\n**/tmp/*.x\n",
        "a/": "!keep.log\n/top\n*.x\n",
        "a/b/": "*.log\n!tmp/\n!tmp/y.x\n!build/\n",
        "c/": "*\n!*/\n!*.x\ntmp/**\n",
    }
    names = ["l.log", "keep.log", "top", "build/o", "doc/read.txt", "doc/other.txt", "tmp/y.x", "tmp/z.x", "p.x"]
    folder = make(tmp_path, {f"{place}{name}": "x" for place in ("", "a/", "a/b/", "c/") for name in names})
    for name in (".gitignore", ".fairleadignore"):
        make(folder, {f"{place}{name}": text for place, text in rules.items()})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run([git, "init", "-q"], cwd=folder, env=clean, check=True)
    command = [git, "-c", "core.excludesFile=", "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, env=clean, check=True, capture_output=True, text=True)
    assert files(pack(folder)) == set(listed.stdout.splitlines())


def test_a_bundle_over_the_limit_names_the_largest_files_and_the_fix(tmp_path: Path) -> None:
    folder = make(tmp_path, {"train.py": "x", "huge.bin": "x" * 9000, "big.bin": "x" * 4000})
    with pytest.raises(TooLarge) as caught:
        pack(folder, limit_bytes=10_000)
    assert "huge.bin" in caught.value.message
    assert ".fairleadignore" in (caught.value.fix or "")
    (folder / ".fairleadignore").write_text("huge.bin\n")
    assert "big.bin" in files(pack(folder, limit_bytes=10_000))


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("private")
    folder = make(tmp_path / "work", {"train.py": "x", "sub/a": "x"})
    (folder / "link").symlink_to(target)
    with pytest.raises(InvalidSpec, match="link") as caught:
        pack(folder)
    assert ".fairleadignore" in (caught.value.fix or "")


def test_a_link_through_a_linked_folder_that_leaves_is_refused_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "work", {"train.py": "x"})
    (folder / "inner").mkdir()
    (folder / "inner" / "up").symlink_to("../..")
    with pytest.raises(InvalidSpec):
        pack(folder)


def test_a_link_inside_the_folder_still_works_after_unpacking_elsewhere(tmp_path: Path) -> None:
    folder = make(tmp_path / "work", {"data/a.csv": "1,2\n"})
    (folder / "absolute").symlink_to(folder / "data" / "a.csv")
    (folder / "data" / "relative").symlink_to("a.csv")
    (folder / "folder").symlink_to("data")
    target = tmp_path / "elsewhere"
    opened(pack(folder)).extractall(target, filter="data")
    for name in ("absolute", "data/relative", "folder/a.csv"):
        assert (target / name).read_text() == "1,2\n"


def test_an_empty_folder_inside_is_there_for_programs_that_write_into_it(tmp_path: Path) -> None:
    folder = make(tmp_path, {"train.py": "x"})
    (folder / "output").mkdir()
    assert "output" in pack(folder).files


def test_a_name_of_any_letters_and_length_survives(tmp_path: Path) -> None:
    name = "ein/" + "ü" * 60 + "/" + "n" * 120 + ".py"
    folder = make(tmp_path / "work", {name: "x"})
    opened(pack(folder)).extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out" / name).read_text() == "x"


def test_a_folder_that_is_not_there_or_a_socket_in_it_is_said_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound):
        pack(tmp_path / "missing")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        with pytest.raises(FairleadError, match="neither a file nor a folder"):
            pack(tmp_path)


def test_extra_files_are_packed_beside_or_without_a_folder(tmp_path: Path) -> None:
    folder = make(tmp_path, {"a.py": "x"})
    assert pack(folder, {"f.bin": b"1"}).files == ("a.py", "f.bin")
    assert pack(None, {"f.bin": b"1"}).files == ("f.bin",)
