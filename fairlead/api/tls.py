"""TLS for the server: checks certificate and key, reloads them when renewed, and makes self-signed ones."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fairlead.errors import Refused

RELOAD_EVERY_S = 2.0
SOON = timedelta(days=14)
SELF_SIGNED_FOR = timedelta(days=3650)  # clients pin its fingerprint, so expiry would only lock them out

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (with its chain) and its key, as PEM files."""

    certificate: Path
    key: Path

    def leaf(self) -> x509.Certificate:
        """The server's certificate; :class:`Refused` if it is unreadable, expired or not yet valid."""
        try:
            leaf = x509.load_pem_x509_certificates(self.certificate.read_bytes())[0]
        except OSError as error:
            fix = "name a PEM file that the platform's user can read"
            raise _refused("--tls-cert", self.certificate, f"cannot be read: {error.strerror}", fix) from None
        except ValueError:
            fix = "name a PEM file that begins with the server's certificate"
            raise _refused("--tls-cert", self.certificate, "holds no certificate", fix) from None
        now = datetime.now(UTC)
        if leaf.not_valid_after_utc <= now:
            why = f"expired on {leaf.not_valid_after_utc:%Y-%m-%d}"
            raise _refused("--tls-cert", self.certificate, why, "renew it")
        if leaf.not_valid_before_utc > now:
            why = f"is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise _refused("--tls-cert", self.certificate, why, "check this machine's clock, or the certificate")
        return leaf

    def load(self, context: ssl.SSLContext) -> x509.Certificate:
        """Load this pair into the TLS context."""
        leaf = self.leaf()
        try:
            self.key.read_bytes()
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            if "MISMATCH" in str(error):
                why, fix = "does not belong to the certificate", "name the key that the certificate was made for"
            else:
                why, fix = "is not a private key in PEM", "name the certificate's key, as PEM"
            raise _refused("--tls-key", self.key, why, fix) from None
        except OSError as error:
            fix = "name a PEM file that the platform's user can read"
            raise _refused("--tls-key", self.key, f"cannot be read: {error.strerror}", fix) from None
        return leaf

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes when one of the files changes."""
        found = [path.stat() for path in (self.certificate, self.key)]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)


def _no_password() -> str:
    raise Refused("is encrypted, and the platform cannot ask for its password", field="--tls-key", fix="decrypt it")


def _refused(option: str, path: Path, why: str, fix: str) -> Refused:
    return Refused(f"{path} {why}", field=option, value=str(path), fix=fix)


class Tls:
    """The server's TLS context, kept up to date with the certificate files."""

    def __init__(self, pair: Pair, served: Path) -> None:
        """``served``: the file from which local clients read the certificate in use."""
        self._pair, self._served = pair, served
        self.context = server_context()
        self._seen = pair.state() if pair.certificate.exists() and pair.key.exists() else ()
        self.leaf = pair.load(self.context)
        self._serve_leaf()

    @property
    def served(self) -> Path:
        return self._served

    @property
    def warning(self) -> str | None:
        """A warning if the certificate expires within 14 days."""
        left = self.leaf.not_valid_after_utc - datetime.now(UTC)
        return None if left > SOON else f"the certificate expires on {self.leaf.not_valid_after_utc:%Y-%m-%d}"

    async def keep_fresh(self) -> None:
        """Reload a renewed pair within seconds, until cancelled; an invalid pair is not used."""
        while True:
            await asyncio.sleep(RELOAD_EVERY_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        try:
            state = self._pair.state()
            if state == self._seen:
                return
            self._seen = state  # an invalid pair is reported once, until it changes
            self._pair.load(server_context())  # tried in a separate context first
            self.leaf = self._pair.load(self.context)
            self._serve_leaf()
        except (Refused, OSError) as error:
            log.error("invalid renewed certificate; keeping the present one", error=str(error))
        else:
            log.info("certificate renewed", until=f"{self.leaf.not_valid_after_utc:%Y-%m-%d}")

    def _serve_leaf(self) -> None:
        part = self._served.with_suffix(".part")
        part.write_bytes(self.leaf.public_bytes(serialization.Encoding.PEM))
        part.replace(self._served)


def server_context() -> ssl.SSLContext:
    """A context for TLS 1.2 or newer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def fingerprint(leaf: x509.Certificate) -> str:
    """The certificate's fingerprint as FAIRLEAD_CA takes it: ``sha256:`` and hex digits."""
    return f"sha256:{leaf.fingerprint(hashes.SHA256()).hex()}"


def self_signed(folder: Path, host: str) -> Pair:
    """The home's self-signed certificate; created if missing, expiring or not valid for this host."""
    pair = Pair(folder / "certificate.pem", folder / "key.pem")
    try:
        leaf = pair.load(server_context())
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if set(_names(host)) <= set(names) and leaf.not_valid_after_utc - datetime.now(UTC) > SOON:
            return pair
        log.info("creating a new self-signed certificate", until=f"{leaf.not_valid_after_utc:%Y-%m-%d}", host=host)
    except (Refused, x509.ExtensionNotFound) as error:
        if pair.certificate.exists():  # otherwise none was created yet
            log.warning("invalid self-signed certificate; creating a new one", error=str(error))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(pair.key, secret)
    _write(pair.certificate, _signed(key, host).public_bytes(serialization.Encoding.PEM))
    return pair


def _signed(key: ec.EllipticCurvePrivateKey, host: str) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Fairlead on " + socket.gethostname()[:40])])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + SELF_SIGNED_FOR)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )


def _names(host: str) -> list[x509.GeneralName]:
    texts = dict.fromkeys(("localhost", socket.gethostname(), "127.0.0.1", "::1", host))
    names: list[x509.GeneralName] = []
    for text in texts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            names.append(x509.DNSName(text))
    return names


def _write(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    part.replace(path)
