"""An authority for tests, and certificates of it that are good, old, or somebody else's."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fairlead.api.tls import Pair


class Authority:
    """Signs certificates for 127.0.0.1 and localhost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("The tests' authority")
        self._certificate = self._sign(self._name, self._key.public_key(), timedelta(days=9), authority=True)
        self.pem = folder / "ca.pem"
        self.pem.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def pair(self, name: str, days: float = 90, *, password: bytes | None = None) -> Pair:
        """A certificate that ends in so many days (or ended so many ago), with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = self._sign(_name(name), key.public_key(), timedelta(days=days))
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + self.pem.read_bytes())
        how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
        return pair

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, left: timedelta, *, authority: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=200))
            .not_valid_after(now + left)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if not authority:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
