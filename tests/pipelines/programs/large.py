"""Results larger than what their tenant may have in memory."""

import numpy as np

from fairlead import pipeline, stage


@stage
def make(megabytes: int, mark: int) -> np.ndarray:
    return np.full((megabytes, 1 << 20), mark, np.uint8)


@stage
def ends(block: np.ndarray) -> list[int]:
    return [int(block[0, 0]), int(block[-1, -1])]


@stage(cache=False)
def look(after: list[list[int]]) -> dict[str, list[str]]:
    from fairlead.grid import Grid

    grid = Grid.of_this_worker()
    assert grid is not None
    found = grid.blocks()
    return {
        "labels": sorted(block.label.rpartition("/")[2] for block in found),
        "spilled": sorted(block.label for block in found if block.where == "spilled"),
        "worthless": sorted(block.label for block in found if block.cost_s <= 0),
        "pinned": sorted(block.label for block in found if block.pins),
    }


@pipeline
def too_much(parts: int = 4, megabytes: int = 30):
    made = [make.named(f"make-{part}")(megabytes, part) for part in range(parts)]
    look([ends.named(f"ends-{part}")(each) for part, each in enumerate(made)])


@stage
def more(block: np.ndarray, mark: int) -> np.ndarray:
    return block + np.uint8(mark)


@pipeline
def passed_on(links: int, mark: int):
    block = make(5, mark)
    for _ in range(links):
        block = more(block, 1)


@pipeline
def too_large(megabytes: int = 100):
    ends(make(megabytes, 1))
