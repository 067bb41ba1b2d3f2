"""One file over HTTP: goes on where it was cut off, is compared with its checksum, and takes its name only then."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from fairlead.data.dataset_origins import Download
from fairlead.data.errors import BadData
from fairlead.errors import Unavailable

Report = Callable[[str, int, int | None], None]
_IDLE_ATTEMPTS = 5  # attempts in a row that bring nothing
_WAIT_S = 0.25
_TIMEOUT = httpx.Timeout(30.0)
_RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)


def download(wanted: Download, folder: Path, report: Report) -> Path:
    """The file in the folder. One that is there and has its checksum is not asked for again."""
    target = folder / wanted.name
    if target.exists() and wanted.checksum is not None and checksum(target, wanted.checksum) == wanted.checksum:
        return target
    failures = []
    for url in wanted.urls:
        try:
            partly = _fetch_url(url, folder / f"{wanted.name}.part", wanted.name, report)
        except Unavailable as error:
            failures.append(error)
            continue
        if wanted.checksum is not None and checksum(partly, wanted.checksum) != wanted.checksum:
            _discard(partly)
            fix = "try again; if it stays so, its origin publishes another file now"
            raise BadData(url, f"is not the {wanted.name} that is known: its checksum differs", fix=fix)
        partly.replace(target)
        _etag_file(partly).unlink(missing_ok=True)
        return target
    raise failures[0]


def checksum(path: Path, like: str) -> str:
    """The checksum of a file by the algorithm that another one names; of its content, where it is packed."""
    algorithm, _, expected = like.partition(":")
    if algorithm == "rows":
        import pyarrow.parquet

        try:
            return f"rows:{pyarrow.parquet.read_metadata(path).num_rows}"
        except (pyarrow.ArrowInvalid, OSError):
            return "rows:none"  # it is no whole file: as little what was published as one with other rows
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected and path.suffix == ".gz":
        try:
            with gzip.open(path) as inner:
                found = hashlib.file_digest(inner, algorithm).hexdigest()
        except (OSError, EOFError):  # not even packed as it says: the checksum of the outside tells enough
            return f"{algorithm}:{found}"
    return f"{algorithm}:{found}"


def _fetch_url(url: str, partly: Path, name: str, report: Report) -> Path:
    """All of a URL in a file beside its later place, in as many attempts as bring something."""
    idle, last = 0, "it gave nothing"
    with httpx.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
        while idle < _IDLE_ATTEMPTS:
            before = _size(partly)
            try:
                if _request_rest(client, url, partly, name, report):
                    return partly
                last = "the connection was cut"
            except httpx.HTTPStatusError as error:
                last = f"it answered {error.response.status_code}"
                if error.response.status_code not in _RETRIED_STATUSES:
                    break
            except httpx.HTTPError as error:
                last = str(error) or type(error).__name__
            idle = 0 if _size(partly) > before else idle + 1
            time.sleep(_WAIT_S * (2**idle - 1))  # at once after progress, then ever more patiently
    fix = "try again later (it goes on where it stopped), or name a folder that holds it: --from FOLDER"
    raise Unavailable(f"{url} cannot be read: {last}", fix=fix)


def _request_rest(client: httpx.Client, url: str, partly: Path, name: str, report: Report) -> bool:
    """One request for what is missing; whether the file is whole then."""
    have, tag = _size(partly), _etag_file(partly)
    asked = {"Accept-Encoding": "identity"}
    if have and tag.exists():
        asked |= {"Range": f"bytes={have}-", "If-Range": tag.read_text()}  # of the same version, or all of the new one
    with client.stream("GET", url, headers=asked) as answer:
        if answer.status_code == 416:  # there is no more than what we have, or it is another file
            _discard(partly)
            return False
        answer.raise_for_status()
        go_on = answer.status_code == 206 and answer.headers.get("content-range", "").startswith(f"bytes {have}-")
        have = have if go_on else 0
        length = answer.headers.get("content-length")
        total = have + int(length) if length and length.isdigit() else None
        version = answer.headers.get("etag") or answer.headers.get("last-modified")
        if version and not version.startswith("W/"):
            tag.write_text(version)
        else:
            tag.unlink(missing_ok=True)
        with partly.open("ab" if go_on else "wb") as file:
            for block in answer.iter_raw():  # as it comes: what a cut connection brought is not lost in a buffer
                file.write(block)
                have += len(block)
                report(name, have, total)
    return total is None or have == total


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _etag_file(partly: Path) -> Path:
    return partly.with_name(f"{partly.name}.tag")


def _discard(partly: Path) -> None:
    partly.unlink(missing_ok=True)
    _etag_file(partly).unlink(missing_ok=True)
