"""Bearer tokens: created and shown once, stored as a digest, checked in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from fairlead.control.records import Role, Token
from fairlead.errors import Unauthenticated

_BEARER = re.compile(r"^(?:bearer\s+)?fl_([a-z0-9]{1,32})_([A-Za-z0-9]{16,128})$", re.IGNORECASE)
_DUMMY_DIGEST = hashlib.sha256(b"nobody").hexdigest()
_FIX = "set FAIRLEAD_TOKEN to a token of this platform, or ask its admin for one"


def mint(tenant: str | None, role: Role, label: str, expires_s: float | None, now_s: float) -> tuple[Token, str]:
    """A new token as it is stored, and the string that is shown to its owner once."""
    token_id, secret = secrets.token_hex(5), secrets.token_hex(24)
    token = Token(
        id=token_id,
        tenant=tenant,
        role=role,
        label=label,
        digest=_digest(secret),
        created_s=now_s,
        expires_s=expires_s,
    )
    return token, f"fl_{token_id}_{secret}"


def parse(bearer: str) -> tuple[str, str]:
    """Id and secret of a token string, with or without ``Bearer``."""
    match = _BEARER.match(bearer.strip())
    if match is None:
        raise Unauthenticated("this is not a Fairlead token", fix=_FIX)
    return match[1], match[2]


def verify(token: Token | None, secret: str, now_s: float) -> Token:
    """The token, if the secret matches and the token is valid. An unknown id takes as long as a wrong secret."""
    # The secret has 192 random bits: a plain digest cannot be brute-forced and costs a request microseconds.
    right = hmac.compare_digest(_DUMMY_DIGEST if token is None else token.digest, _digest(secret))
    if token is None or not right:
        raise Unauthenticated("the token is unknown", fix=_FIX)
    return require_valid(token, now_s)


def require_valid(token: Token, now_s: float) -> Token:
    """The token, if it is neither revoked nor expired."""
    if token.revoked_s is not None and token.revoked_s <= now_s:
        raise Unauthenticated("the token was revoked", fix=_FIX)
    if token.expires_s is not None and token.expires_s <= now_s:
        raise Unauthenticated("the token has expired", fix=_FIX)
    return token


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
