"""Looks into the grid of its node and writes down the labels that its tenant has there."""

import json
import os
from pathlib import Path

from fairlead.grid import Grid

grid = Grid.of_this_worker()
assert grid is not None
labels = sorted({block.label for block in grid.blocks()})
(Path(os.environ["FAIRLEAD_OUTPUT"]) / "labels.json").write_text(json.dumps(labels))
