"""Certificates that a client trusts: the system's CAs, a CA of its own, or one pinned certificate."""

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
    """The ``verify`` argument for httpx; True: the system's CAs."""
    if profile.url.startswith("http://"):
        # Loading the system's certificates costs more CPU time than a request, so only for TLS.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if profile.certificate is not None:
        return _exactly(_read(profile.certificate, "restart the platform: fairlead down, then fairlead up"))
    if profile.ca is None:
        return True
    if profile.ca.lower().startswith("sha256:"):
        return _exactly(_fetch(profile.url, profile.ca))
    context = ssl.create_default_context(cadata=_read(profile.ca, "name a PEM file in FAIRLEAD_CA"))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server certificate is accepted as well as a CA
    return context


def _exactly(pem: str) -> ssl.SSLContext:
    """A context that trusts only this certificate, under any host name."""
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
    """The platform's certificate if it has this fingerprint; later connections prove its key."""
    if _FINGERPRINT.match(wanted) is None:
        raise Unavailable(f"{wanted!r} is not a fingerprint", fix="write FAIRLEAD_CA=sha256: and 64 hex digits")
    place = urlsplit(url)
    try:
        pem = ssl.get_server_certificate((place.hostname or "", place.port or 443), timeout=CONNECT_S)
    except ssl.SSLError:
        raise Unavailable(f"{url} does not speak TLS", fix="use http://, or enable TLS on the platform") from None
    except (OSError, ValueError):
        raise Unavailable(f"no platform answers at {url}", fix="start it: fairlead up, or check FAIRLEAD_URL") from None
    found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    if found != wanted.lower().removeprefix("sha256:").replace(":", ""):
        raise Unavailable(
            f"{url} has another certificate: sha256:{found}",
            fix="ask the platform's admin; if it was renewed, set FAIRLEAD_CA to the new fingerprint",
        )
    return pem


def _read(path: str, fix: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise Unavailable(f"the certificate {path} cannot be read: {error}", fix=fix) from None


def tls_error(url: str, error: BaseException) -> Unavailable | None:
    """The TLS error of a failed connection with its fix; None for other errors."""
    text, cause = str(error), error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
        text += f" {cause}"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.rpartition("verify failed: ")[2].partition(" (_ssl")[0] or "it cannot be verified"
        fix = "set FAIRLEAD_CA to the CA's PEM file, or to the sha256:... that fairlead up prints"
        return Unavailable(f"the certificate of {url} is not trusted: {why}", fix=fix)
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return Unavailable(f"{url} does not speak TLS", fix="use http://, or enable TLS on the platform")
    if "ssl" in text.lower():
        return Unavailable(f"TLS with {url} failed: {text.partition(' (_ssl')[0]}", fix="check FAIRLEAD_URL")
    return None
