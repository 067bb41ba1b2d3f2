"""What operators and failures made of the nodes, and how far the events of each have been taken in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from sqlalchemy import Connection, bindparam, delete, select

from fairlead.cluster import NodeState
from fairlead.control.store import damaged_rows
from fairlead.control.store.row_mapping import Insert, insert_into
from fairlead.control.store.schema import node_cursors, node_states

_STATES = {state.value: state for state in NodeState}
_FORGET = delete(node_cursors).where(
    node_cursors.c.node == bindparam("of_node"), node_cursors.c.incarnation == bindparam("of_incarnation")
)


def states(conn: Connection) -> dict[str, NodeState]:
    """By node; one whose state makes no sense gets nothing new until somebody sets it anew."""
    found = {}
    for node, state in conn.execute(select(node_states.c.node, node_states.c.state)):
        if state not in _STATES:
            damaged_rows.note("node_states", str(node), "its state is none that exists; it is taken for cordoned")
        found[str(node)] = _STATES.get(state, NodeState.CORDONED)
    return found


def set_state(conn: Connection, node: str, state: NodeState) -> None:
    statement = insert_into(conn.dialect.name, node_states).values(node=node, state=state.value)
    conn.execute(statement.on_conflict_do_update(index_elements=["node"], set_={"state": statement.excluded.state}))


def cursors(conn: Connection) -> dict[tuple[str, str], int]:
    """The newest event taken in, by node and incarnation of its manager."""
    query = select(node_cursors.c.node, node_cursors.c.incarnation, node_cursors.c.sequence)
    found = {}
    for node, incarnation, sequence in conn.execute(query):
        if isinstance(sequence, int):
            found[node, incarnation] = sequence
        else:  # its node tells all again
            damaged_rows.note("node_cursors", str(node), "sequence is no number")
    return found


def advance(conn: Connection, node: str, incarnation: str, sequence: int) -> None:
    """Events up to this one are taken in. A cursor never goes back."""
    advance_all(conn, {(node, incarnation): sequence})


def advance_all(conn: Connection, to: Mapping[tuple[str, str], int]) -> None:
    """The same for many: the sequence by node and incarnation."""
    rows = [{"node": node, "incarnation": incarnation, "sequence": at} for (node, incarnation), at in to.items()]
    if rows:
        conn.execute(_advance(conn.dialect.name), rows)


@cache  # to build a statement costs more than to run it
def _advance(dialect: str) -> Insert:
    row = insert_into(dialect, node_cursors)
    return row.on_conflict_do_update(
        index_elements=["node", "incarnation"],
        set_={"sequence": row.excluded.sequence},
        where=node_cursors.c.sequence < row.excluded.sequence,
    )


def forget(conn: Connection, over: Collection[tuple[str, str]]) -> None:
    """Drop the cursors of these incarnations, which will never tell of anything again."""
    if over:
        conn.execute(_FORGET, [{"of_node": node, "of_incarnation": incarnation} for node, incarnation in over])
