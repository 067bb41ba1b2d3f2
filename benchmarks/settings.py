"""The settings of the planning benchmark: which model, on how many workers, over which link, at which speeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

MODELS = {
    "cnn": "CNN on CIFAR-10", "bank": "MLP on Bank Marketing", "kdd": "MLP on KDD 99",
    "transformer": "transformer on IMDB", "wide": "wide embedding", "deep": "deep and narrow on KDD 99",
}  # fmt: skip
LINKS = {"loopback": None, "1gbit": 125e6, "200mbit": 25e6}
SPEEDS = {"equal": (1.0,), "2:1": (2.0, 1.0)}
CORES = 0.4
"""Of the fastest workers: four of them leave this machine, which has two cores, a little to spare."""

PER_MODEL = (
    (1, "loopback", "equal"), (2, "loopback", "equal"), (2, "1gbit", "2:1"), (2, "200mbit", "equal"),
    (4, "1gbit", "equal"), (4, "200mbit", "2:1"),
)  # fmt: skip
QUICK = ("kdd/2/200mbit/equal", "cnn/2/loopback/equal")


@dataclass(frozen=True, slots=True)
class Setting:
    model: str
    workers: int
    link: str
    speeds: str

    @property
    def id(self) -> str:
        return f"{self.model}/{self.workers}/{self.link}/{self.speeds}"

    @property
    def bytes_per_s(self) -> float | None:
        return LINKS[self.link]

    @property
    def cores(self) -> list[float]:
        """Quota of each worker."""
        paces = SPEEDS[self.speeds]
        return [CORES * paces[at % len(paces)] / max(paces) for at in range(self.workers)]


def setting(text: str) -> Setting:
    """By its id, such as ``cnn/2/200mbit/2:1``."""
    model, workers, link, speeds = text.split("/")
    if model not in MODELS or link not in LINKS or speeds not in SPEEDS:
        raise SystemExit(f"{text}: write model/workers/link/speeds, such as cnn/2/200mbit/2:1")
    return Setting(model, int(workers), link, speeds)


def chosen(*, quick: bool) -> Sequence[Setting]:
    """Those that FAIRLEAD_SETTINGS names (ids, or beginnings of them, with commas), else all; few when it is quick."""
    every = [Setting(model, *rest) for rest in PER_MODEL for model in MODELS]
    asked = [word for word in os.environ.get("FAIRLEAD_SETTINGS", "").split(",") if word]
    if asked:
        whole = [setting(word) for word in asked if word.count("/") == 3]
        begun = [one for one in every if any(one.id.startswith(word) for word in asked)]
        return list(dict.fromkeys([*whole, *begun]))
    return [setting(word) for word in QUICK] if quick else every
