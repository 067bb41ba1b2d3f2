"""Sessions of the web page: the digest of a cookie and the token it stands for."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select
from sqlalchemy import insert as insert_row

from fairlead.control.records import Token
from fairlead.control.store import tokens
from fairlead.control.store.schema import sessions


def insert(conn: Connection, digest: str, token: str, now_s: float, expires_s: float, most: int) -> None:
    """Store a session; removes expired sessions and all but the token's newest ``most``."""
    conn.execute(delete(sessions).where(sessions.c.expires_s <= now_s))
    row = {"digest": digest, "token": token, "created_s": now_s, "expires_s": expires_s}
    conn.execute(insert_row(sessions), row)
    newest = (
        select(sessions.c.digest)
        .where(sessions.c.token == token)
        .order_by(sessions.c.created_s.desc(), sessions.c.digest)
    )
    beyond = list(conn.execute(newest.offset(most)).scalars())
    if beyond:
        conn.execute(delete(sessions).where(sessions.c.digest.in_(beyond)))


def token_of(conn: Connection, digest: str, now_s: float) -> Token | None:
    """The token of an unexpired session as it is now; None without such a session."""
    standing = sessions.c.digest == digest, sessions.c.expires_s > now_s
    token = conn.execute(select(sessions.c.token).where(*standing)).scalar_one_or_none()
    return None if token is None else tokens.get(conn, token)


def remove(conn: Connection, digest: str) -> bool:
    """True if there was such a session."""
    return bool(conn.execute(delete(sessions).where(sessions.c.digest == digest)).rowcount)
