"""The in-memory data grid: immutable blocks in shared memory per node and tenant, mapped without a copy."""

from fairlead.grid.block import Block
from fairlead.grid.client import Grid
from fairlead.grid.values import BlockId, BlockInfo, Usage

__all__ = ["Block", "BlockId", "BlockInfo", "Grid", "Usage"]
