"""Encrypts tenants' secrets at rest (AES-GCM) with the platform's key, each bound to its tenant and name."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fairlead.errors import InvalidSpec, Refused, Unavailable
from fairlead.home import Home

KEY_VARIABLE = "FAIRLEAD_SECRET_KEY"
_KEY_BYTES, _NONCE_BYTES, _ID_BYTES = 32, 12, 4
_VERSION = b"\x01"
_SHARE = f"give every control plane of this store the same key ({KEY_VARIABLE} or --secret-key-file)"


class SecretVault:
    """Seals and opens secrets. Without a given key, the first secret creates one in the home."""

    def __init__(self, home: Home, key: bytes | None = None) -> None:
        self._path = home.secret_key
        self._key = key

    @classmethod
    def of(cls, home: Home, key_file: Path | None = None, variables: Mapping[str, str] = os.environ) -> SecretVault:
        """The vault with the key from the file, the variable or the home. Raises at once for an invalid key."""
        if key_file is not None:
            return cls(home, _read_key(key_file, "--secret-key-file"))
        if KEY_VARIABLE in variables:
            return cls(home, _parse_key(variables[KEY_VARIABLE], KEY_VARIABLE))
        return cls(home, _read_key(home.secret_key, str(home.secret_key)) if home.secret_key.exists() else None)

    def seal(self, tenant: str, name: str, value: str) -> bytes:
        """The value encrypted, as the store may hold it."""
        if self._key is None:
            self._key = _create_key(self._path)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._key).encrypt(nonce, value.encode(), _associated_data(tenant, name))
        return _VERSION + _key_id(self._key) + nonce + sealed

    def derive(self, *purpose: str) -> bytes:
        """A key for another purpose, always the same for the same purpose. It reveals nothing about the vault's key."""
        if self._key is None:
            self._key = _create_key(self._path)
        return hmac.digest(self._key, b"fairlead key for\0" + "\0".join(purpose).encode(), "sha256")

    def open(self, tenant: str, name: str, sealed: bytes) -> str:
        """The decrypted value; raises :class:`Refused` when this platform's key does not open it."""
        key_id, rest = sealed[1 : 1 + _ID_BYTES], sealed[1 + _ID_BYTES :]
        if self._key is None or sealed[:1] != _VERSION or key_id != _key_id(self._key):
            mine = "this platform has no key" if self._key is None else f"this one's is {_key_id(self._key).hex()}"
            raise Refused(f"the secret {name} was encrypted with the key {key_id.hex()}, and {mine}", field="secrets",
                          value=name, fix=f"{_SHARE}, or set it again: fairlead secret set {name}")  # fmt: skip
        try:
            nonce, box = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
            return AESGCM(self._key).decrypt(nonce, box, _associated_data(tenant, name)).decode()
        except (InvalidTag, ValueError):
            raise Refused(f"the secret {name} was changed in the store and cannot be decrypted", field="secrets",
                          value=name, fix=f"set it again: fairlead secret set {name}") from None  # fmt: skip


def _associated_data(tenant: str, name: str) -> bytes:
    """Authenticated with each secret, so that no row can be passed off as another tenant's or name's."""
    return f"fairlead secret\0{tenant}\0{name}".encode()


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"fairlead key id\0" + key).digest()[:_ID_BYTES]


def _create_key(path: Path) -> bytes:
    """Write a new key file atomically, or read the one that another process wrote first."""
    text = base64.b64encode(os.urandom(_KEY_BYTES)) + b"\n"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    except OSError as error:
        raise Unavailable(f"the key of the secrets cannot be written to {path}: {error.strerror}",
                          fix="make room, or make the folder writable") from None  # fmt: skip
    finally:
        part.unlink(missing_ok=True)
    return _read_key(path, str(path))


def _read_key(path: Path, field: str) -> bytes:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}", field=field, fix="name a readable file") from None
    return _parse_key(text, field)


def _parse_key(text: str, field: str) -> bytes:
    """32 bytes in hex or base64. The error does not repeat the text."""
    written = text.strip()
    try:
        is_hex = re.fullmatch(r"[0-9a-fA-F]{64}", written)
        key = bytes.fromhex(written) if is_hex else base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise InvalidSpec(f"is not a key of {_KEY_BYTES} bytes in base64 or hex", field=field,
                          fix="make one: openssl rand -base64 32")  # fmt: skip
    return key
