"""Whom a client believes on the other end of TLS: the system's authorities, one of its own, or one certificate."""

from __future__ import annotations

import hashlib
import re
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.errors import Unavailable
from fairlead.sdk.profile import Profile

CONNECT_S = 5.0
_FINGERPRINT = re.compile(r"^sha256:(?:[0-9a-f]{2}:?){32}$", re.IGNORECASE)


def verification(profile: Profile) -> ssl.SSLContext | bool:
    """What httpx is to check the platform's certificate against; True: the system's authorities."""
    if profile.url.startswith("http://"):
        # Loading the system's certificates costs more CPU than a whole call: only where TLS is spoken.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if profile.certificate is not None:
        return _exactly(_read(profile.certificate, "start the platform again: fairlead down, then fairlead up"))
    if profile.ca is None:
        return True
    if profile.ca.lower().startswith("sha256:"):
        return _exactly(_fetch(profile.url, profile.ca))
    context = ssl.create_default_context(cadata=_read(profile.ca, "name a PEM file in FAIRLEAD_CA"))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server's own certificate will do as well
    return context


def _exactly(pem: str) -> ssl.SSLContext:
    """Trust in this one certificate, under whatever name it is reached."""
    first = pem[: pem.find("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=first)
    except (ssl.SSLError, ValueError) as error:
        raise Unavailable(f"the certificate to trust cannot be read: {error}", fix="check FAIRLEAD_CA") from None
    return context


def _fetch(url: str, wanted: str) -> str:
    """The certificate that the platform shows, if it has this fingerprint; the connection itself proves its key."""
    if _FINGERPRINT.match(wanted) is None:
        raise Unavailable(f"{wanted!r} is not a fingerprint", fix="write FAIRLEAD_CA=sha256: and 64 hex digits")
    place = urlsplit(url)
    try:
        pem = ssl.get_server_certificate((place.hostname or "", place.port or 443), timeout=CONNECT_S)
    except ssl.SSLError:
        raise Unavailable(f"{url} does not speak TLS", fix="write http:// if it is to be plain") from None
    except (OSError, ValueError):
        raise Unavailable(f"no platform answers at {url}", fix="start it: fairlead up, or check FAIRLEAD_URL") from None
    found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    if found != wanted.lower().removeprefix("sha256:").replace(":", ""):
        raise Unavailable(
            f"{url} shows another certificate: sha256:{found}",
            fix="ask the platform's admin; if it was renewed, set FAIRLEAD_CA to the new fingerprint",
        )
    return pem


def _read(path: str, fix: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise Unavailable(f"the certificate {path} cannot be read: {error}", fix=fix) from None


def complaint(url: str, error: BaseException) -> Unavailable | None:
    """What TLS has to say of a connection that failed, in words; None when it was not TLS."""
    said, cause = str(error), error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
        said += f" {cause}"
    if "CERTIFICATE_VERIFY_FAILED" in said:
        why = said.rpartition("verify failed: ")[2].partition(" (_ssl")[0] or "it cannot be verified"
        fix = "set FAIRLEAD_CA to the authority's PEM file, or to sha256:... as fairlead up shows it"
        return Unavailable(f"the certificate of {url} is not trusted: {why}", fix=fix)
    if "WRONG_VERSION_NUMBER" in said or "RECORD_LAYER_FAILURE" in said:
        return Unavailable(f"{url} does not speak TLS", fix="write http:// if it is to be plain")
    if "ssl" in said.lower():
        return Unavailable(f"TLS with {url} failed: {said.partition(' (_ssl')[0]}", fix="check FAIRLEAD_URL")
    return None
