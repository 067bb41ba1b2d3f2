"""Which code a process was started with: an upgrade must reach what is forked from now on, whatever its protocol."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import fairlead

EXCLUDED = frozenset({"api", "cli", "control", "dashboard", "demo", "scheduling", "sdk", "simulation"})
"""Rooms that nothing on a node is made of: a new page or policy renews no node."""


@cache
def code_digest() -> str:
    """A digest of the source that hosts, node managers and workers run.

    Of a forked process it is its host's: taken once, when the code was loaded, and not of what was installed since.
    """
    return package_digest(Path(fairlead.__file__).parent)


def package_digest(package: Path) -> str:
    """The digest of the package in this folder; ten milliseconds."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        if place.parts[0] not in EXCLUDED:
            digest.update(f"{place}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
