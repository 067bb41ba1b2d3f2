"""Promises of `fairlead data get`: whole and compared, or not at all; a cut connection costs only what was cut."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairlead.data import BadData, known_datasets, read
from fairlead.data.dataset_origins import BANK, CIFAR10, IMDB, KDD99, ORIGINS, DatasetOrigin, Download, find_origin
from fairlead.data.downloading import checksum, download
from fairlead.data.known_datasets import _verify, get_dataset
from fairlead.data.unpacking import UNPACK
from fairlead.errors import NotFound, Unavailable

BODY = bytes(range(256)) * 4_000


@dataclass
class Site:
    """A server whose connections end after so many bytes; it keeps what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut: int | None = None
    ranges: bool = True
    tag: str = '"one"'
    asked: list[str] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    busy: int = 0  # so many requests are refused at first
    url: str = ""

    def wanted(self, name: str, body: bytes | None = None) -> Download:
        data = self.files[name] if body is None else body
        return Download(name, (f"{self.url}/{name}",), f"sha256:{hashlib.sha256(data).hexdigest()}")


@pytest.fixture
def site() -> Iterator[Site]:
    here = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, asked = here.files.get(self.path.strip("/")), self.headers.get("Range", "")
            if target := here.moved.get(self.path.strip("/")):
                self.send_response(301)
                self.send_header("Location", f"{here.url}/{target}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            here.asked.append(asked)
            if here.busy:
                here.busy -= 1
                self.send_error(503)
                return
            if body is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and here.ranges else 0
            start = start if self.headers.get("If-Range", here.tag) == here.tag else 0
            if start > len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.send_header("ETag", here.tag)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            self.wfile.write(body[start : None if here.cut is None else start + here.cut])
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            """Nothing: the test says what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    here.url = f"http://127.0.0.1:{server.server_port}"
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


def silent(name: str, done: int, total: int | None) -> None:
    """A report that nobody reads."""


def test_a_connection_that_is_cut_is_taken_up_where_it_ended(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"], site.cut = BODY, 300_000
    seen: list[int] = []
    file = download(site.wanted("a.bin"), tmp_path, lambda _name, done, _total: seen.append(done))
    assert file.read_bytes() == BODY
    assert site.asked == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert seen == sorted(seen) and seen[-1] == len(BODY)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_what_an_earlier_attempt_brought_is_kept(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(BODY[:1000])
    (tmp_path / "a.bin.part.tag").write_text(site.tag)
    assert download(site.wanted("a.bin"), tmp_path, silent).read_bytes() == BODY
    assert download(site.wanted("a.bin"), tmp_path, silent).read_bytes() == BODY
    assert site.asked == ["bytes=1000-"]  # and nothing was asked for the second time


@pytest.mark.parametrize("ranges", [True, False])
def test_another_version_is_begun_anew(ranges: bool, site: Site, tmp_path: Path) -> None:
    site.files["a.bin"], site.ranges = BODY, ranges
    (tmp_path / "a.bin.part").write_bytes(b"of yesterday")
    (tmp_path / "a.bin.part.tag").write_text('"old"')
    assert download(site.wanted("a.bin"), tmp_path, silent).read_bytes() == BODY


def test_another_checksum_is_refused_and_nothing_takes_the_name(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = BODY[:-1] + b"!"
    with pytest.raises(BadData, match="checksum"):
        download(site.wanted("a.bin", BODY), tmp_path, silent)
    assert not list(tmp_path.iterdir())


def test_a_second_place_is_asked_when_the_first_has_nothing(site: Site, tmp_path: Path) -> None:
    site.files["b.bin"] = BODY
    wanted = replace(site.wanted("b.bin"), urls=(f"{site.url}/gone", f"{site.url}/b.bin"))
    assert download(wanted, tmp_path, silent).read_bytes() == BODY
    with pytest.raises(Unavailable, match="404"):
        download(replace(wanted, name="c", urls=(f"{site.url}/gone",)), tmp_path, silent)


def test_published_archives_become_what_is_read(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLEAD_DATA", raising=False)
    table = b'"age";"y"\n30;"no"\n'
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("bank-full.csv", table)
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("bank.zip", inner.getvalue())
    site.files["bank.zip"] = outer.getvalue()
    known = {"bank-full.csv.gz": f"sha256:{hashlib.sha256(table).hexdigest()}"}
    bank = replace(BANK, downloads=(site.wanted("bank.zip"),), unpacked_files=known)
    got = get_dataset(bank, to=tmp_path)
    assert read(got.files[0]).table().to_pylist() == [{"age": 30, "y": "no"}]
    reviews = io.BytesIO()
    with tarfile.open(fileobj=reviews, mode="w:gz") as archive:
        for name in ("train/pos/1_9", "train/pos/0_10", "train/neg/0_2", "test/neg/7_1", "train/unsup/1_0", "../x"):
            member = tarfile.TarInfo(f"aclImdb/{name}.txt")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    site.files["r.tar.gz"] = reviews.getvalue()
    imdb = replace(IMDB, downloads=(site.wanted("r.tar.gz"),),
                   unpacked_files={"imdb_train.parquet": "rows:3", "imdb_test.parquet": "rows:1"})  # fmt: skip
    got = get_dataset(imdb, to=tmp_path)
    assert [tuple(row.values()) for row in read(got.files[0]).table().to_pylist()] == [
        (0, "train/neg/0_2", 0, 2), (0, "train/pos/0_10", 1, 10), (1, "train/pos/1_9", 1, 9),
    ]  # fmt: skip
    assert get_dataset(imdb, to=tmp_path).files == got.files


def test_what_was_cut_off_while_unpacking_is_not_taken_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = CIFAR10
    with tarfile.open(tmp_path / published.downloads[0].name, "w:gz") as archive:
        for name in published.unpacked_files:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = 10
            archive.addfile(member, io.BytesIO(bytes(10)))

    def cut(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr("fairlead.data.unpacking.shutil.copyfileobj", cut)
        with pytest.raises(OSError, match="full"):
            UNPACK["cifar10"](published, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [published.downloads[0].name]
    UNPACK["cifar10"](published, tmp_path)
    assert all((tmp_path / name).stat().st_size == 10 for name in published.unpacked_files)


def test_a_broken_table_is_not_what_was_published(tmp_path: Path) -> None:
    (tmp_path / "imdb_train.parquet").write_bytes(b"PAR1 and no more")
    assert checksum(tmp_path / "imdb_train.parquet", "rows:25000") != "rows:25000"


def test_cifar10_as_published_is_read_like_its_compact_form(tmp_path: Path) -> None:
    planes = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    (tmp_path / "data_batch_1.bin").write_bytes(planes * 3)
    found = read(tmp_path).table()
    assert found.column("label").to_pylist() == [7, 7, 7]
    assert found.column("image")[0].as_py() == [1, 2, 3] * 1024


def test_a_local_folder_is_compared_and_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gzip.compress(b"0,tcp\n", mtime=0)
    sums = {name: f"sha256:{hashlib.sha256(data).hexdigest()}" for name in KDD99.compact_files}
    kdd = replace(KDD99, compact_files=sums)
    (tmp_path / "from" / "kdd99").mkdir(parents=True)
    for name in sums:
        (tmp_path / "from" / "kdd99" / name).write_bytes(data)
    monkeypatch.setenv("FAIRLEAD_DATA", str(tmp_path / "from"))
    assert get_dataset(kdd).folder == tmp_path / "from" / "kdd99"  # where it is already
    assert get_dataset(kdd, source=tmp_path / "from", to=tmp_path / "to").files[0].read_bytes() == data
    (tmp_path / "from" / "kdd99" / "corrected.gz").write_bytes(data[:-1] + b"!")
    with pytest.raises(BadData, match="checksum differs"):
        get_dataset(kdd)
    with pytest.raises(NotFound, match="does not hold bank"):
        get_dataset(BANK, source=tmp_path / "from")


def test_every_data_set_of_record_says_where_it_comes_from() -> None:
    assert set(ORIGINS) == {"cifar10", "bank", "imdb", "kdd99"}
    assert all(url.startswith("http") for each in ORIGINS.values() for d in each.downloads for url in d.urls)
    assert len(CIFAR10.unpacked_files) == 6
    with pytest.raises(NotFound, match="not a data set that Fairlead can download"):
        find_origin("mnist")


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BadData, match="cannot be created"):
        known_datasets._make_folder(tmp_path / "file" / "adult")


def test_an_address_that_has_moved_is_followed(site: Site, tmp_path: Path) -> None:
    site.files["new.bin"], site.moved["old.bin"] = BODY, "new.bin"
    wanted = replace(site.wanted("new.bin"), urls=(f"{site.url}/old.bin",))
    assert download(wanted, tmp_path, silent).read_bytes() == BODY


def test_a_site_that_is_busy_is_asked_again_ever_more_patiently(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("fairlead.data.downloading.time.sleep", waited.append)
    site.files["a.bin"], site.busy = BODY, 3
    assert download(site.wanted("a.bin"), tmp_path, silent).read_bytes() == BODY
    assert waited == [0.25, 0.75, 1.75]
    waited.clear()
    site.busy = 100
    (tmp_path / "a.bin").unlink()
    with pytest.raises(Unavailable, match="the server answered 503"):
        download(site.wanted("a.bin"), tmp_path, silent)
    assert len(waited) == 5
    site.busy = 0
    waited.clear()
    with pytest.raises(Unavailable, match="the server answered 404"):
        download(Download("gone", (f"{site.url}/gone",), None), tmp_path, silent)
    assert waited == []  # asking again would not help


def test_a_tag_that_is_weak_is_not_gone_on_by(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.data.downloading.time.sleep", lambda _: None)
    site.files["a.bin"], site.cut, site.tag = BODY, 600_000, 'W/"one"'
    with pytest.raises(Unavailable, match=r"the connection was cut|closed"):
        download(site.wanted("a.bin"), tmp_path, silent)
    assert set(site.asked) == {""}


def test_a_part_longer_than_the_file_is_begun_anew(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(BODY + b"more")
    (tmp_path / "a.bin.part.tag").write_text(site.tag)
    assert download(site.wanted("a.bin"), tmp_path, silent).read_bytes() == BODY
    assert site.asked == [f"bytes={len(BODY) + 4}-", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_the_folder_named_after_a_data_set_is_taken_before_its_parent(tmp_path: Path) -> None:
    known = replace(BANK, compact_files={"a.csv": f"sha256:{hashlib.sha256(b'right').hexdigest()}"})
    (tmp_path / known.folder).mkdir()
    (tmp_path / "a.csv").write_bytes(b"of something else")
    (tmp_path / known.folder / "a.csv").write_bytes(b"right")
    assert known_datasets._find_local(known, tmp_path) == tmp_path / known.folder
    assert known_datasets._from_folder(known, tmp_path / known.folder, None, silent).files == (
        tmp_path / known.folder / "a.csv",
    )
    with pytest.raises(BadData, match="its checksum differs"):
        known_datasets._from_folder(known, tmp_path, None, silent)


def test_without_a_place_it_goes_where_the_data_lies_or_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = CIFAR10
    monkeypatch.setenv("FAIRLEAD_DATA", str(tmp_path))
    assert known_datasets._target_folder(known, None) == tmp_path / known.folder
    assert known_datasets._target_folder(known, tmp_path / "mine") == tmp_path / "mine" / known.folder
    for unset in ("", None):
        monkeypatch.delenv("FAIRLEAD_DATA") if unset is None else monkeypatch.setenv("FAIRLEAD_DATA", unset)
        assert known_datasets._target_folder(known, None) == Path("data") / known.folder


def test_a_file_is_told_of_when_it_is_compared_and_any_of_its_sums_will_do(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(BODY)
    good, bad = f"sha256:{hashlib.sha256(BODY).hexdigest()}", f"sha256:{hashlib.sha256(b'x').hexdigest()}"
    for kept, contents, same in (({}, good, True), ({"a.bin": good}, bad, True), ({"a.bin": bad}, bad, False)):
        made = DatasetOrigin("o", "title", "folder", (), {"a.bin": contents}, kept, "terms")
        told: list[tuple[str, int, int | None]] = []
        if same:
            _verify(made, path, lambda *words, told=told: told.append(words))  # type: ignore[misc]
        else:
            with pytest.raises(BadData, match="its checksum differs"):
                _verify(made, path, lambda *words, told=told: told.append(words))  # type: ignore[misc]
        assert told == [("a.bin", len(BODY), len(BODY))]
