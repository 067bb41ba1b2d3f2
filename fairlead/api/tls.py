"""TLS by option: reads a certificate and its key, says what is wrong with them, and takes a renewed pair unasked."""

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

LOOK_EVERY_S = 2.0  # for a renewed pair
SOON = timedelta(days=14)
SELF_SIGNED_FOR = timedelta(days=3650)  # clients know it by its fingerprint: a short life would only lock them out

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate (with its chain) and the key that belongs to it, as PEM files."""

    certificate: Path
    key: Path

    def leaf(self) -> x509.Certificate:
        """The server's own certificate; :class:`Refused` when it cannot be used now."""
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
        """Let the context answer with this pair from now on."""
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
        """Changes whenever one of the files does."""
        found = [path.stat() for path in (self.certificate, self.key)]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)


def _no_password() -> str:
    raise Refused("is encrypted, and nobody is there to type its password", field="--tls-key", fix="decrypt it")


def _refused(option: str, path: Path, why: str, fix: str) -> Refused:
    return Refused(f"{path} {why}", field=option, value=str(path), fix=fix)


class Tls:
    """What the server needs to speak TLS, kept up to date with the files."""

    def __init__(self, pair: Pair, served: Path) -> None:
        """``served`` is where clients of this machine find the certificate that is in use."""
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
        """What an operator should hear of: the certificate ends soon."""
        left = self.leaf.not_valid_after_utc - datetime.now(UTC)
        return None if left > SOON else f"the certificate expires on {self.leaf.not_valid_after_utc:%Y-%m-%d}"

    async def keep_fresh(self) -> None:
        """Take a renewed pair within seconds, until cancelled; a pair that is no good leaves the one in use."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        try:
            state = self._pair.state()
            if state == self._seen:
                return
            self._seen = state  # a bad one is complained about once, and looked at again when it changes
            self._pair.load(server_context())  # tried elsewhere first: the one in use must not be harmed
            self.leaf = self._pair.load(self.context)
            self._serve_leaf()
        except (Refused, OSError) as error:
            log.error("the renewed certificate cannot be used; the former one stays", error=str(error))
        else:
            log.info("the certificate was renewed", until=f"{self.leaf.not_valid_after_utc:%Y-%m-%d}")

    def _serve_leaf(self) -> None:
        part = self._served.with_suffix(".part")
        part.write_bytes(self.leaf.public_bytes(serialization.Encoding.PEM))
        part.replace(self._served)


def server_context() -> ssl.SSLContext:
    """TLS 1.2 or newer, nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def fingerprint(leaf: x509.Certificate) -> str:
    """How people compare certificates, and how FAIRLEAD_CA names one: ``sha256:`` and hex digits."""
    return f"sha256:{leaf.fingerprint(hashes.SHA256()).hex()}"


def self_signed(folder: Path, host: str) -> Pair:
    """The home's own certificate, made on first use, and again when it has expired or does not name the host."""
    pair = Pair(folder / "certificate.pem", folder / "key.pem")
    try:
        leaf = pair.load(server_context())
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if set(_names(host)) <= set(names) and leaf.not_valid_after_utc - datetime.now(UTC) > SOON:
            return pair
        log.info("the platform's own certificate is made anew", until=f"{leaf.not_valid_after_utc:%Y-%m-%d}", host=host)
    except (Refused, x509.ExtensionNotFound) as error:
        if pair.certificate.exists():  # else there is none yet
            log.warning("the platform's own certificate cannot be used and is made anew", error=str(error))
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
