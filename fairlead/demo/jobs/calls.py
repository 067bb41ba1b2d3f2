"""A plain command, not a training: finds the groups of clients that are worth a call. It does not use Fairlead."""

import csv
import gzip
import os
from collections import Counter
from pathlib import Path


def rows() -> list[tuple[str, bool]]:
    """A group and whether it was a hit, for every row of the table."""
    file = Path(os.environ.get("FAIRLEAD_DATA", "")) / "bank_marketing" / "bank-full.csv.gz"
    if file.is_file():
        with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
            return [(row["job"], row["y"] == "yes") for row in csv.DictReader(text, delimiter=";")]
    from sklearn.datasets import load_breast_cancer

    bundled = load_breast_cancer()
    sizes = ["large" if radius > 15.0 else "small" for radius in bundled.data[:, 0]]
    return [(size, target == 0) for size, target in zip(sizes, bundled.target, strict=True)]


def main() -> None:
    table = rows()
    everybody, hits = Counter(group for group, _ in table), Counter(group for group, hit in table if hit)
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    print(f"worker {rank} of {size}: {len(table)} rows in {len(everybody)} groups")
    for group in sorted(everybody, key=lambda group: -hits[group] / everybody[group])[:3]:
        print(f"{group:>14}: {hits[group] / everybody[group]:5.1%} of {everybody[group]}")


if __name__ == "__main__":
    main()
