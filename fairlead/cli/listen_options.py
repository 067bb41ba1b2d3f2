"""How ``fairlead up`` listens: on the loopback in plain, and elsewhere only with TLS, unless one insists."""

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

TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="Speak TLS with this certificate (PEM, with chain).")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key (PEM).")]
SelfSigned = Annotated[bool, typer.Option("--tls-self-signed", help="Speak TLS with a certificate of its own making.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without TLS all the same.")]

BehindHttps = Annotated[
    bool, typer.Option("--behind-https", help="A proxy before it speaks TLS: no TLS here, but cookies for TLS only.")
]


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """What was asked for, checked."""

    host: str
    cert: Path | None = None
    key: Path | None = None
    self_signed: bool = False
    insecure: bool = False
    behind_https: bool = False

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "--tls-key" if self.key is None else "--tls-cert"
            raise InvalidSpec("a certificate needs its key, and a key its certificate", field=missing,
                              fix="name both: --tls-cert FILE --tls-key FILE")  # fmt: skip
        if self.cert is not None and self.self_signed:
            raise InvalidSpec("there is a certificate already", field="--tls-self-signed", fix="leave one of them out")
        if self.tls and self.behind_https:
            raise InvalidSpec("is for a proxy that speaks TLS instead of the platform", field="--behind-https",
                              fix="leave it out, or leave out --tls-...")  # fmt: skip
        if not (self.tls or self.behind_https or self.insecure or loopback(self.host)):
            raise Refused(
                "without TLS tokens and data would cross the network for all to read", field="--host", value=self.host,
                fix="add --tls-cert FILE --tls-key FILE, or --tls-self-signed; behind a TLS proxy: --behind-https",
            )  # fmt: skip

    @property
    def tls(self) -> bool:
        return self.cert is not None or self.self_signed

    def arguments(self) -> list[str]:
        """The same again, for the process that runs behind."""
        given = ["--host", self.host]
        if self.cert is not None and self.key is not None:
            given += ["--tls-cert", str(self.cert.absolute()), "--tls-key", str(self.key.absolute())]
        given += ["--tls-self-signed"] if self.self_signed else []
        given += ["--behind-https"] if self.behind_https else []
        return given + (["--insecure"] if self.insecure else [])

    def load(self, home: Home) -> Tls | None:
        """The certificate, ready to be served; None in plain. Says what is wrong with it."""
        if not self.tls:
            return None
        from fairlead.api.tls import Pair, Tls, self_signed

        if self.cert is not None and self.key is not None:
            pair = Pair(self.cert.expanduser().absolute(), self.key.expanduser().absolute())
        else:
            pair = self_signed(home.root / "tls", self.host)
        return Tls(pair, home.run / "certificate.pem")


def loopback(host: str) -> bool:
    """Whether nobody but this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def told(tls: Tls | None, *, self_signed: bool) -> dict[str, str | None]:
    """What there is to say of the certificate when the platform is up."""
    if tls is None:
        return {}
    from fairlead.api.tls import fingerprint

    return {"fingerprint": fingerprint(tls.leaf) if self_signed else None, "warning": tls.warning}
