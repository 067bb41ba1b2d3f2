"""Where a gang sits: best fit over nodes of like speed, on as few nodes as possible, whole or not at all."""

from __future__ import annotations

from fairlead.scheduling.board import Board, Shape


def place(board: Board, shape: Shape, count: int, keep: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """Seats for this many newcomers beside those kept, or None if they do not all fit.

    A synchronous gang goes at the pace of its slowest worker: so first the fastest pace at which all
    fit is found, and among the nodes that keep it, the fewest are taken, beginning with those the gang
    already sits on, then the fullest one that still takes all.
    """
    room = board.room(shape)
    if sum(room.values()) < count:
        return None
    pace = {name: like_speed(board.nodes[name].speed) for name in room}
    slowest = _pace_for(room, pace, count)
    if keep:
        slowest = min(slowest, *(like_speed(board.nodes[name].speed) for name in keep))
    names = [name for name in room if pace[name] >= slowest]
    chosen: list[str] = []
    home = set(keep)
    while len(chosen) < count:
        left = count - len(chosen)
        best = min(names, key=lambda name: _preference(name, name in home, room[name], left, pace[name]))
        chosen += [best] * min(left, room[best])
        names.remove(best)
    return tuple(sorted(chosen))


def like_speed(speed: float) -> float:
    """Speeds within a tenth count as alike: measured speeds are never quite equal."""
    return round(speed, 1)


def _pace_for(room: dict[str, int], pace: dict[str, float], count: int) -> float:
    total, slowest = 0, 0.0
    for name in sorted(room, key=lambda name: -pace[name]):
        slowest = pace[name]
        total += room[name]
        if total >= count:
            break
    return slowest


def _preference(name: str, at_home: bool, slots: int, left: int, pace: float) -> tuple[bool, bool, int, float, str]:
    takes_all = slots >= left
    return (not at_home, not takes_all, slots if takes_all else -slots, pace, name)
