"""Stores the state of nodes (cordoned, drained, ...) and the event cursor of each node's manager."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from sqlalchemy import Connection, bindparam, delete, select

from fairlead.cluster import NodeState
from fairlead.control.store import damaged_rows
from fairlead.control.store.row_mapping import Insert, insert_into
from fairlead.control.store.schema import node_cursors, node_states

_STATES = {state.value: state for state in NodeState}
_DROP_CURSOR = delete(node_cursors).where(
    node_cursors.c.node == bindparam("of_node"), node_cursors.c.incarnation == bindparam("of_incarnation")
)


def states(conn: Connection) -> dict[str, NodeState]:
    """State by node. A node with an unknown state counts as cordoned until an operator sets it again."""
    found = {}
    for node, state in conn.execute(select(node_states.c.node, node_states.c.state)):
        if state not in _STATES:
            damaged_rows.report_damage("node_states", str(node), "its state is unknown; treated as cordoned")
        found[str(node)] = _STATES.get(state, NodeState.CORDONED)
    return found


def set_state(conn: Connection, node: str, state: NodeState) -> None:
    statement = insert_into(conn.dialect.name, node_states).values(node=node, state=state.value)
    conn.execute(statement.on_conflict_do_update(index_elements=["node"], set_={"state": statement.excluded.state}))


def cursors(conn: Connection) -> dict[tuple[str, str], int]:
    """Sequence number of the newest processed event, by node and incarnation of its manager."""
    query = select(node_cursors.c.node, node_cursors.c.incarnation, node_cursors.c.sequence)
    found = {}
    for node, incarnation, sequence in conn.execute(query):
        if isinstance(sequence, int):
            found[node, incarnation] = sequence
        else:  # the node sends all its events again
            damaged_rows.report_damage("node_cursors", str(node), "sequence is not a number")
    return found


def advance_cursor(conn: Connection, node: str, incarnation: str, sequence: int) -> None:
    """Mark events up to this one as processed. A cursor never goes back."""
    advance_cursors(conn, {(node, incarnation): sequence})


def advance_cursors(conn: Connection, to: Mapping[tuple[str, str], int]) -> None:
    """The same for many: sequence by node and incarnation."""
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


def drop_cursors(conn: Connection, over: Collection[tuple[str, str]]) -> None:
    """Delete the cursors of these incarnations, which will send nothing more."""
    if over:
        conn.execute(_DROP_CURSOR, [{"of_node": node, "of_incarnation": incarnation} for node, incarnation in over])
