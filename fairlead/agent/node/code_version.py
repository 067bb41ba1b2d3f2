"""The digest of the code that a process runs, by which outdated hosts and node managers are found after an upgrade."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import fairlead

EXCLUDED = frozenset({"api", "cli", "control", "dashboard", "demo", "scheduling", "sdk", "simulation"})
"""Packages that no process on a node uses: changes in them restart no node."""


@cache
def code_digest() -> str:
    """Digest of the source that hosts, node managers and workers run.

    Cached: a forked process returns its host's, of the code as it was loaded and not as installed since.
    """
    return package_digest(Path(fairlead.__file__).parent)


def package_digest(package: Path) -> str:
    """Digest of the package in this folder; takes 10 ms."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        if place.parts[0] not in EXCLUDED:
            digest.update(f"{place}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
