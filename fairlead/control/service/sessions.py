"""Web page sessions: exchange a token for a cookie, so that the token is never stored in the browser."""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import Connection

from fairlead.control.identity import tokens
from fairlead.control.records import Token
from fairlead.control.service.core import Verbs
from fairlead.control.store import sessions
from fairlead.errors import Unauthenticated

SESSION_S = 12 * 3600.0
MAX_SESSIONS = 50  # per token; the oldest are closed


class SessionVerbs(Verbs):
    """Sessions of the web page. A session ends with its token at the latest."""

    async def open_session(self, who: Token) -> tuple[str, float]:
        """The secret of a new session and its lifetime in seconds; only the secret's digest is stored.

        The audit log gets one line a minute per token.
        """
        now_s, secret = self._core.clock(), secrets.token_urlsafe(32)
        noted = self._core.audit_throttle.due(who.id, "session.open", now_s)
        left_s = SESSION_S if who.expires_s is None else min(SESSION_S, who.expires_s - now_s)

        def work(connection: Connection) -> None:
            sessions.insert(connection, _digest(secret), who.id, now_s, now_s + left_s, MAX_SESSIONS)
            if noted:
                self._audit(connection, who, "session.open", who.id)

        await self._write(work)
        return secret, left_s

    async def session(self, secret: str) -> Token:
        """The token of a session, read anew each time: revoking a token ends its sessions at once."""
        now_s, digest = self._core.clock(), _digest(secret)
        token = await self._read(lambda connection: sessions.token_of(connection, digest, now_s))
        if token is None:
            raise Unauthenticated("this session has ended", fix="log in again")
        return tokens.require_valid(token, now_s)

    async def close_session(self, who: Token, secret: str) -> None:
        """End the session of this cookie."""
        now_s = self._core.clock()

        def work(connection: Connection) -> None:
            if sessions.remove(connection, _digest(secret)) and self._core.audit_throttle.due(
                who.id, "session.close", now_s
            ):
                self._audit(connection, who, "session.close", who.id)

        await self._write(work)


def _digest(secret: str) -> str:
    # 256 random bits: a plain digest cannot be brute-forced.
    return hashlib.sha256(secret.encode()).hexdigest()
