"""Places a repaired gang's newcomers: best fit over nodes of similar speed, on few nodes, all of them or none."""

from __future__ import annotations

from fairlead.scheduling.seating_plan import SeatingPlan, Shape, like_speed


def place(
    seating: SeatingPlan, shape: Shape, count: int, keep: tuple[str, ...] = (), prefer: str | None = None
) -> tuple[str, ...] | None:
    """Seats for so many newcomers beside the kept seats, on devices of one type; None if not all of them fit.

    If the shape names no type: the type of the kept seats, or else the preferred one, or else the fastest.
    """
    kind = shape.device_type or seating.kind(keep)
    if kind is not None:
        return _on_type(seating, shape.on(kind), count, keep)
    for kind in sorted(seating.types, key=lambda kind: (kind != prefer, -like_speed(seating.fastest(kind)), kind)):
        seats = _on_type(seating, shape.on(kind), count, keep)
        if seats is not None:
            return seats
    return None


def _on_type(seating: SeatingPlan, shape: Shape, count: int, keep: tuple[str, ...]) -> tuple[str, ...] | None:
    """The seats on one device type.

    A synchronous gang runs at the pace of its slowest worker. So this finds the fastest pace at which all workers fit,
    and takes few nodes of that pace: first nodes that the gang is on already, then the fullest that takes all the rest.
    """
    places = seating.places(shape)
    if places.total < count:
        return None
    if seating.plain(shape, count > 1):
        return places.pick(count, keep)
    room = dict(places.slots)
    pace = {name: like_speed(seating.nodes[name].speed) for name in room}
    slowest = _pace_for(room, pace, count)
    if keep:
        slowest = min(slowest, *(like_speed(seating.nodes[name].speed) for name in keep))
    names = _near_each_other(seating, {name: room[name] for name in room if pace[name] >= slowest}, count, keep)
    chosen: list[str] = []
    home = set(keep)
    while len(chosen) < count:
        left = count - len(chosen)
        best = min(
            names,
            key=lambda name: (
                not_near(seating, shape, name),
                *_preference(seating, shape, name, name in home, room[name], left),
            ),
        )
        chosen += [best] * min(left, room[best])
        names.remove(best)
    return tuple(sorted(chosen))


def not_near(seating: SeatingPlan, shape: Shape, name: str) -> bool:
    """Whether the job's data lies elsewhere."""
    return bool(shape.near) and shape.near.isdisjoint(seating.nodes[name].places)


def _near_each_other(seating: SeatingPlan, room: dict[str, int], count: int, keep: tuple[str, ...]) -> list[str]:
    """The nodes of the narrowest domain (rack, then zone) that takes all workers; of several the tightest."""
    if max(room.values(), default=0) >= count and not keep:
        return list(room)
    depth = max((len(seating.nodes[name].path) for name in room), default=0)
    for length in range(depth, 0, -1):
        domains: dict[tuple[str, ...], list[str]] = {}
        for name in room:
            domains.setdefault(seating.nodes[name].path[:length], []).append(name)
        home = {seating.nodes[name].path[:length] for name in keep}
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
    seating: SeatingPlan, shape: Shape, name: str, at_home: bool, slots: int, left: int
) -> tuple[bool, int, bool, bool, int, int, float, str]:
    """Sort key: the gang is there already, little interference, takes all, awake, tight, cool, not too fast."""
    node, takes_all = seating.nodes[name], slots >= left
    tight = slots if takes_all else -slots
    harm = seating.neighbours.harm(shape.kind, name)
    return (not at_home, harm, not takes_all, node.asleep, tight, seating.warmths[name], like_speed(node.speed), name)
