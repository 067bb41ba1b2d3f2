"""Room that is reserved ahead of need: filled while nobody waits for the grid process, and made a block afterwards."""

from __future__ import annotations

from fairlead.grid import messages as m
from fairlead.grid.connection import GridConnection
from fairlead.grid.layout import Layout
from fairlead.grid.spill import Cipher, sealed_bytes
from fairlead.grid.values import BlockId


class ReservedRoom:
    """So many bytes of the arena, warm. Where memory is encrypted they are bytes of this process, sealed at the end.

    It goes back by itself when its process dies: what was not committed never was.
    """

    def __init__(self, line: GridConnection, block: BlockId, nbytes: int) -> None:
        """Ask for it; raises what the grid process answers when there is none."""
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
        """It holds what the layout says, and is a block from now on."""
        layout.finish(self.view)
        if not self.in_arena:
            place = 0
            for piece in Cipher(self._line.welcome.memory_key, self._line.welcome.tenant).seal(self.id, self.view):
                self._place[place : place + len(piece)] = piece
                place += len(piece)
        self._line.ask(m.Commit(self.id, len(layout.header), kind, label, cost_s))
        return self.id

    def give_back(self) -> None:
        """It is not needed."""
        self._line.release(self.id, self._line.session)


def warm(nbytes: int) -> memoryview:
    """Memory of this process, with its pages at hand."""
    import numpy as np

    made = np.empty(nbytes, np.uint8)
    made.fill(0)
    return made.data
