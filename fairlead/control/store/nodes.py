"""What operators and failures made of the nodes, and how far the events of each have been taken in."""

from __future__ import annotations

from sqlalchemy import Connection, select

from fairlead.cluster import NodeState
from fairlead.control.store.rows import insert_into
from fairlead.control.store.schema import node_cursors, node_states


def states(conn: Connection) -> dict[str, NodeState]:
    return {node: NodeState(state) for node, state in conn.execute(select(node_states.c.node, node_states.c.state))}


def set_state(conn: Connection, node: str, state: NodeState) -> None:
    statement = insert_into(conn.dialect.name, node_states).values(node=node, state=state.value)
    conn.execute(statement.on_conflict_do_update(index_elements=["node"], set_={"state": statement.excluded.state}))


def cursors(conn: Connection) -> dict[tuple[str, str], int]:
    """The newest event taken in, by node and incarnation of its manager."""
    query = select(node_cursors.c.node, node_cursors.c.incarnation, node_cursors.c.sequence)
    return {(node, incarnation): sequence for node, incarnation, sequence in conn.execute(query)}


def advance(conn: Connection, node: str, incarnation: str, sequence: int) -> None:
    """Events up to this one are taken in. A cursor never goes back."""
    cursor = {"node": node, "incarnation": incarnation, "sequence": sequence}
    statement = insert_into(conn.dialect.name, node_cursors).values(cursor)
    conn.execute(
        statement.on_conflict_do_update(
            index_elements=["node", "incarnation"],
            set_={"sequence": statement.excluded.sequence},
            where=node_cursors.c.sequence < statement.excluded.sequence,
        )
    )
