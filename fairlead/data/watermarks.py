"""Watermarks of files (size, time and hash), so that a later read takes only new files and appended lines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.data.errors import BadData
from fairlead.data.options import MIB
from fairlead.data.readers.streams import split_archive_path

_RELOAD = "load the data set again as a new version"


@dataclass(frozen=True, slots=True)
class Span:
    """A file and the byte range to read; earlier bytes were read before."""

    path: Path
    start: int
    stop: int
    mtime_ns: int


def file_spans(files: Sequence[Path], after: Mapping[str, Any] | None, *, grows: bool) -> tuple[list[Span], list[Span]]:
    """All files as they are now, and the new spans. Only plain text files can grow; others are read whole."""
    known = (after or {}).get("files", {})
    every, fresh = [], []
    for path in files:
        state = split_archive_path(path)[0].stat()
        span = Span(path, 0, state.st_size, state.st_mtime_ns)
        every.append(span)
        past = known.get(str(path))
        if past is None:
            fresh.append(span)
        elif (grown := _appended(span, past, grows)) is not None:
            fresh.append(grown)
    return every, fresh


def _appended(span: Span, past: Mapping[str, Any], grows: bool) -> Span | None:
    size = int(past["size"])
    if (span.stop, span.mtime_ns) == (size, past["mtime_ns"]):
        return None
    if span.stop < size or prefix_sha256(span.path, size) != past["sha256"]:
        raise BadData(span.path, "has changed in the part that was read earlier", fix=_RELOAD)
    if span.stop == size:
        return None
    if not grows or not _ends_a_line(span.path, size):
        raise BadData(span.path, "has grown, but not by whole lines of plain text", fix=_RELOAD)
    return Span(span.path, size, span.stop, span.mtime_ns)


def _ends_a_line(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, size - 1))
        return file.read(1) in (b"\n", b"")


def file_watermark(every: Sequence[Span], after: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The watermark: the files read now, and earlier ones, even if they are gone."""
    found = {
        str(span.path): {"size": span.stop, "mtime_ns": span.mtime_ns, "sha256": prefix_sha256(span.path, span.stop)}
        for span in every
    }
    return {"files": {**(after or {}).get("files", {}), **found}}


def prefix_sha256(path: Path, size: int) -> str:
    """SHA-256 of the first ``size`` bytes."""
    sum_, left = hashlib.sha256(), size
    with split_archive_path(path)[0].open("rb") as file:
        while left > 0 and (block := file.read(min(MIB, left))):
            sum_.update(block)
            left -= len(block)
    return sum_.hexdigest()
