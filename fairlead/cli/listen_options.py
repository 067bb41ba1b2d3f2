"""Options for the listening address of ``fairlead up``: plain HTTP on loopback, TLS on other addresses."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.errors import InvalidSpec, Refused
from fairlead.home import Home

if TYPE_CHECKING:
    from fairlead.api.tls import Tls

TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="Serve TLS with this certificate (PEM, with chain).")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="Private key of the certificate (PEM).")]
SelfSigned = Annotated[bool, typer.Option("--tls-self-signed", help="Serve TLS with a generated certificate.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow other machines to connect without TLS.")]

BehindHttps = Annotated[
    bool, typer.Option("--behind-https", help="A proxy in front serves TLS: plain HTTP here, secure cookies.")
]


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The listening options, validated."""

    host: str
    cert: Path | None = None
    key: Path | None = None
    self_signed: bool = False
    insecure: bool = False
    behind_https: bool = False

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "--tls-key" if self.key is None else "--tls-cert"
            raise InvalidSpec("a certificate and its key belong together", field=missing,
                              fix="give both: --tls-cert FILE --tls-key FILE")  # fmt: skip
        if self.cert is not None and self.self_signed:
            raise InvalidSpec("excludes --tls-cert", field="--tls-self-signed", fix="leave one of them out")
        if self.tls and self.behind_https:
            raise InvalidSpec("means that a proxy serves TLS, which excludes --tls-...", field="--behind-https",
                              fix="leave it out, or leave out --tls-...")  # fmt: skip
        if not (self.tls or self.behind_https or self.insecure or loopback(self.host)):
            raise Refused(
                "without TLS, tokens and data would cross the network unencrypted", field="--host", value=self.host,
                fix="add --tls-cert FILE --tls-key FILE, or --tls-self-signed; behind a TLS proxy: --behind-https",
            )  # fmt: skip

    @property
    def tls(self) -> bool:
        return self.cert is not None or self.self_signed

    def arguments(self) -> list[str]:
        """The same options as arguments of the background process."""
        given = ["--host", self.host]
        if self.cert is not None and self.key is not None:
            given += ["--tls-cert", str(self.cert.absolute()), "--tls-key", str(self.key.absolute())]
        given += ["--tls-self-signed"] if self.self_signed else []
        given += ["--behind-https"] if self.behind_https else []
        return given + (["--insecure"] if self.insecure else [])

    def load(self, home: Home) -> Tls | None:
        """The checked certificate; None for plain HTTP."""
        if not self.tls:
            return None
        from fairlead.api.tls import Pair, Tls, self_signed

        if self.cert is not None and self.key is not None:
            pair = Pair(self.cert.expanduser().absolute(), self.key.expanduser().absolute())
        else:
            pair = self_signed(home.root / "tls", self.host)
        return Tls(pair, home.run / "certificate.pem")


def loopback(host: str) -> bool:
    """True if only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def certificate_facts(tls: Tls | None, *, self_signed: bool) -> dict[str, str | None]:
    """The certificate's fingerprint and warning, for the start-up message."""
    if tls is None:
        return {}
    from fairlead.api.tls import fingerprint

    return {"fingerprint": fingerprint(tls.leaf) if self_signed else None, "warning": tls.warning}
