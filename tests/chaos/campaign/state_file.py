"""What a campaign remembers on the disk, so that it can be ended and go on: written whole after each change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.chaos.campaign.faults import Fault
from tests.chaos.campaign.held_devices import Held
from tests.chaos.campaign.work import Entry, Size, Undisturbed


@dataclass(slots=True)
class State:
    """All of one campaign; its platform's home is the folder beside the file."""

    seed: int
    nodes: int
    size: Size = field(default_factory=Size)
    faults: list[Fault] = field(default_factory=list)
    drawn: int = 0  # numbers of faults that are used up, also those that hit nobody
    entries: list[Entry] = field(default_factory=list)
    undisturbed: Undisturbed | None = None
    held: dict[str, Held] = field(default_factory=dict)  # by job, as seen from outside
    took_s: float = 0.0  # of all its runs together
    interrupted: int = 0
    orphans: list[str] = field(default_factory=list)


def home(file: Path) -> Path:
    return file.with_name(f"{file.name}.home")


def read(file: Path) -> State | None:
    """None: there is no such campaign yet."""
    return msgspec.json.decode(file.read_bytes(), type=State) if file.exists() else None


def write(file: Path, state: State) -> None:
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_bytes(msgspec.json.encode(state))
    fresh.replace(file)
