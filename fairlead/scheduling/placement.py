"""Where a gang sits: best fit over nodes of like speed, on as few nodes as possible, whole or not at all."""

from __future__ import annotations

from fairlead.scheduling.seating_plan import SeatingPlan, Shape, like_speed


def place(
    board: SeatingPlan, shape: Shape, count: int, keep: tuple[str, ...] = (), prefer: str | None = None
) -> tuple[str, ...] | None:
    """Seats for this many newcomers beside those kept, on devices of one type; None if they do not all fit.

    Any type will do if the shape names none: that of those kept, or else the preferred one, or else the fastest.
    """
    kind = shape.device_type or board.kind(keep)
    if kind is not None:
        return _on_type(board, shape.on(kind), count, keep)
    for kind in sorted(board.types, key=lambda kind: (kind != prefer, -like_speed(board.fastest(kind)), kind)):
        seats = _on_type(board, shape.on(kind), count, keep)
        if seats is not None:
            return seats
    return None


def _on_type(board: SeatingPlan, shape: Shape, count: int, keep: tuple[str, ...]) -> tuple[str, ...] | None:
    """The seats on one type of device.

    A synchronous gang goes at the pace of its slowest worker: so first the fastest pace at which all
    fit is found, and among the nodes that keep it, the fewest are taken, beginning with those the gang
    already sits on, then the fullest one that still takes all.
    """
    places = board.places(shape)
    if places.total < count:
        return None
    if board.plain(shape, count > 1):
        return places.pick(count, keep)
    room = dict(places.slots)
    pace = {name: like_speed(board.nodes[name].speed) for name in room}
    slowest = _pace_for(room, pace, count)
    if keep:
        slowest = min(slowest, *(like_speed(board.nodes[name].speed) for name in keep))
    names = _near_each_other(board, {name: room[name] for name in room if pace[name] >= slowest}, count, keep)
    chosen: list[str] = []
    home = set(keep)
    while len(chosen) < count:
        left = count - len(chosen)
        best = min(
            names,
            key=lambda name: (
                not_near(board, shape, name),
                *_preference(board, shape, name, name in home, room[name], left),
            ),
        )
        chosen += [best] * min(left, room[best])
        names.remove(best)
    return tuple(sorted(chosen))


def not_near(board: SeatingPlan, shape: Shape, name: str) -> bool:
    """Whether the job would rather run elsewhere, where its data lies."""
    return bool(shape.near) and shape.near.isdisjoint(board.nodes[name].places)


def _near_each_other(board: SeatingPlan, room: dict[str, int], count: int, keep: tuple[str, ...]) -> list[str]:
    """The nodes of the narrowest domain (rack, then zone) that takes all, with those kept; of several the tightest."""
    if max(room.values(), default=0) >= count and not keep:
        return list(room)
    depth = max((len(board.nodes[name].path) for name in room), default=0)
    for length in range(depth, 0, -1):
        domains: dict[tuple[str, ...], list[str]] = {}
        for name in room:
            domains.setdefault(board.nodes[name].path[:length], []).append(name)
        home = {board.nodes[name].path[:length] for name in keep}
        fits = {path: names for path, names in domains.items() if sum(room[name] for name in names) >= count}
        if home:
            fits = {path: names for path, names in fits.items() if home == {path}}
        if fits:
            return min(fits.items(), key=lambda one: (sum(room[name] for name in one[1]), one[0]))[1]
    return list(room)


def _pace_for(room: dict[str, int], pace: dict[str, float], count: int) -> float:
    total, slowest = 0, 0.0
    for name in sorted(room, key=lambda name: -pace[name]):
        slowest = pace[name]
        total += room[name]
        if total >= count:
            break
    return slowest


def _preference(
    board: SeatingPlan, shape: Shape, name: str, at_home: bool, slots: int, left: int
) -> tuple[bool, int, bool, bool, int, int, float, str]:
    """Of nodes that would do: where it sits already, away from bad company, whole, awake, tight, cool, not too fast."""
    node, takes_all = board.nodes[name], slots >= left
    tight = slots if takes_all else -slots
    harm = board.company.harm(shape.kind, name)
    return (not at_home, harm, not takes_all, node.asleep, tight, board.warmths[name], like_speed(node.speed), name)
