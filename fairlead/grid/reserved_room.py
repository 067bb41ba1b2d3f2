"""Memory in the arena reserved ahead of need, filled without the grid process, and committed as a block."""

from __future__ import annotations

from fairlead.grid import messages as m
from fairlead.grid.connection import GridConnection
from fairlead.grid.layout import Layout
from fairlead.grid.spill import Cipher, sealed_bytes
from fairlead.grid.values import BlockId


class ReservedRoom:
    """Prefaulted bytes of the arena; with encrypted memory, private bytes that commit encrypts into the arena.

    The grid process frees it when this process dies before the commit.
    """

    def __init__(self, line: GridConnection, block: BlockId, nbytes: int) -> None:
        """Reserve the range; raises the grid process's refusal when there is no room."""
        self.id, self.nbytes = block, nbytes
        self._line = line
        sealed = bool(line.welcome.memory_key)
        placed = line.ask(m.Reserve(block, sealed_bytes(nbytes) if sealed else nbytes), m.Placed)
        arena = line.writing()
        arena.prefault(placed.offset, placed.nbytes)
        self._place = arena.view(placed.offset, placed.nbytes)
        self.view = warm(nbytes) if sealed else self._place
        self.in_arena = not sealed

    def commit(self, layout: Layout, *, kind: str, label: str = "", cost_s: float = 0.0) -> BlockId:
        """Write padding and header and turn the range into a block."""
        layout.finish(self.view)
        if not self.in_arena:
            place = 0
            for piece in Cipher(self._line.welcome.memory_key, self._line.welcome.tenant).seal(self.id, self.view):
                self._place[place : place + len(piece)] = piece
                place += len(piece)
        self._line.ask(m.Commit(self.id, len(layout.header), kind, label, cost_s))
        return self.id

    def give_back(self) -> None:
        """Free the reservation."""
        self._line.release(self.id, self._line.session)


def warm(nbytes: int) -> memoryview:
    """Private memory with its pages faulted in."""
    import numpy as np

    made = np.empty(nbytes, np.uint8)
    made.fill(0)
    return made.data
