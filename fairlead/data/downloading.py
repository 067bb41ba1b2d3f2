"""Downloads one file over HTTP: resumes after a cut, verifies the checksum, and renames the file last."""

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
_IDLE_ATTEMPTS = 5  # attempts in a row without a new byte
_WAIT_S = 0.25
_TIMEOUT = httpx.Timeout(30.0)
_RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)


def download(wanted: Download, folder: Path, report: Report) -> Path:
    """The path of the downloaded file. A file that is already there with the right checksum is kept."""
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
            fix = "try again; if it fails again, the origin has published another file"
            raise BadData(url, f"is not the expected {wanted.name}: its checksum differs", fix=fix)
        partly.replace(target)
        _etag_file(partly).unlink(missing_ok=True)
        return target
    raise failures[0]


def checksum(path: Path, like: str) -> str:
    """The checksum of a file, by the algorithm in ``like``; of the content, if a .gz file itself does not match."""
    algorithm, _, expected = like.partition(":")
    if algorithm == "rows":
        import pyarrow.parquet

        try:
            return f"rows:{pyarrow.parquet.read_metadata(path).num_rows}"
        except (pyarrow.ArrowInvalid, OSError):
            return "rows:none"  # damaged: matches no row count
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected and path.suffix == ".gz":
        try:
            with gzip.open(path) as inner:
                found = hashlib.file_digest(inner, algorithm).hexdigest()
        except (OSError, EOFError):  # not a gzip file: the checksum of the file itself counts
            return f"{algorithm}:{found}"
    return f"{algorithm}:{found}"


def _fetch_url(url: str, partly: Path, name: str, report: Report) -> Path:
    """Download a URL into a .part file; gives up after ``_IDLE_ATTEMPTS`` attempts without progress."""
    idle, last = 0, "no data came"
    with httpx.Client(timeout=_TIMEOUT, follow_redirects=True) as client:
        while idle < _IDLE_ATTEMPTS:
            before = _size(partly)
            try:
                if _request_rest(client, url, partly, name, report):
                    return partly
                last = "the connection was cut"
            except httpx.HTTPStatusError as error:
                last = f"the server answered {error.response.status_code}"
                if error.response.status_code not in _RETRIED_STATUSES:
                    break
            except httpx.HTTPError as error:
                last = str(error) or type(error).__name__
            idle = 0 if _size(partly) > before else idle + 1
            time.sleep(_WAIT_S * (2**idle - 1))  # no wait after progress, then exponential back-off
    fix = "try again later (the download resumes), or name a folder that holds the file: --from FOLDER"
    raise Unavailable(f"{url} cannot be downloaded: {last}", fix=fix)


def _request_rest(client: httpx.Client, url: str, partly: Path, name: str, report: Report) -> bool:
    """Request the missing bytes; returns whether the file is complete."""
    have, tag = _size(partly), _etag_file(partly)
    asked = {"Accept-Encoding": "identity"}
    if have and tag.exists():
        asked |= {"Range": f"bytes={have}-", "If-Range": tag.read_text()}  # resume, or get a new version whole
    with client.stream("GET", url, headers=asked) as answer:
        if answer.status_code == 416:  # nothing left to send, or another file: start again
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
            for block in answer.iter_raw():  # unbuffered: a cut connection loses nothing
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
