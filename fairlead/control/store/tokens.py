"""Stores bearer tokens as digests; the secrets themselves are never stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, func, select, update
from sqlalchemy import insert as insert_row

from fairlead.control.records import Role, Token
from fairlead.control.store.row_mapping import row_of
from fairlead.control.store.schema import tokens
from fairlead.errors import NotFound

_ROLE = list(Token.__slots__).index("role")


def insert(conn: Connection, token: Token) -> None:
    conn.execute(insert_row(tokens), row_of(token))


def get(conn: Connection, token_id: str) -> Token | None:
    row = conn.execute(select(tokens).where(tokens.c.id == token_id)).one_or_none()
    return None if row is None else _token(row)


def list_tokens(conn: Connection, tenant: str | None = None) -> list[Token]:
    """The tenant's tokens (None: all tokens, the platform's too), oldest first, with revoked and expired ones."""
    query = select(tokens).order_by(tokens.c.created_s, tokens.c.id)
    if tenant is not None:
        query = query.where(tokens.c.tenant == tenant)
    return [_token(row) for row in conn.execute(query)]


def counts(conn: Connection, tenant: str, now_s: float, since_s: float) -> tuple[int, int]:
    """Number of the tenant's valid tokens, and of its tokens created after ``since_s``, valid or not."""
    unexpired = tokens.c.expires_s.is_(None) | (tokens.c.expires_s > now_s)
    good = func.count().filter(tokens.c.revoked_s.is_(None) & unexpired)
    made = func.count().filter(tokens.c.created_s > since_s)
    row = conn.execute(select(good, made).select_from(tokens).where(tokens.c.tenant == tenant)).one()
    return int(row[0]), int(row[1])


def revoke(conn: Connection, token_id: str, now_s: float) -> Token:
    """Revoke the token and return it. A second revocation keeps the time of the first."""
    standing = tokens.c.id == token_id, tokens.c.revoked_s.is_(None)
    conn.execute(update(tokens).where(*standing).values(revoked_s=now_s))
    token = get(conn, token_id)
    if token is None:
        raise NotFound(f"there is no token {token_id!r}", value=token_id, fix="list them with fairlead tokens")
    return token


def record_use(conn: Connection, token_id: str, now_s: float) -> None:
    """Record a use of the token; the recorded time never goes back."""
    earlier = tokens.c.used_s.is_(None) | (tokens.c.used_s < now_s)
    conn.execute(update(tokens).where(tokens.c.id == token_id, earlier).values(used_s=now_s))


def _token(row: Row[Any]) -> Token:
    values = list(row)
    values[_ROLE] = Role(values[_ROLE])
    return Token(*values)
