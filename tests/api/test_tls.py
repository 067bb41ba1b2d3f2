"""TLS by option: what a certificate must be, whom clients believe, and renewal without a restart."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import httpx
import pytest
from fastapi import FastAPI

from fairlead.api.app import create_app
from fairlead.api.server import serve, stop
from fairlead.api.tls import Pair, Tls, fingerprint, self_signed
from fairlead.cli.listen_options import ListenOptions
from fairlead.control import service
from fairlead.errors import InvalidSpec, Refused, Unavailable
from fairlead.home import Home
from fairlead.sdk.profile import Profile
from fairlead.sdk.tls_trust import verification
from fairlead.sdk.transport import Transport

from .certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def served(tmp_path: Path) -> Path:
    return tmp_path / "certificate.pem"


@asynccontextmanager
async def door(tls: Tls | None) -> AsyncIterator[tuple[str, FastAPI]]:
    app = create_app(cast(service.Platform, None), secure=tls is not None)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, "127.0.0.1", 0, listening.set_result, tls))
    try:
        async with asyncio.timeout(60):
            yield f"{'https' if tls else 'http'}://127.0.0.1:{await listening}", app
    finally:
        stop(app)
        await task


def ask(profile: Profile) -> str:
    """What the SDK hears from the platform of this profile: its title, or its complaint."""
    wire = Transport(profile)
    try:
        return str(wire.call("GET", "/openapi.json", patient=False)["info"]["title"])
    finally:
        wire.close()


def heard(url: str, ca: str | None = None, certificate: Path | None = None) -> Callable[[], str]:
    return lambda: ask(Profile(url, "fl_a_b", ca=ca, certificate=str(certificate) if certificate else None))


def test_clients_believe_an_authority_a_certificate_or_a_fingerprint_and_nobody_else(
    authority: Authority, served: Path, tmp_path: Path
) -> None:
    tls = Tls(authority.pair("server"), served)
    mark = fingerprint(tls.leaf)
    stranger = Authority(tmp_path / "stranger")

    async def check() -> None:
        async with door(tls) as (url, _):
            by_name = url.replace("127.0.0.1", "localhost")
            for good in (
                heard(url, ca=str(authority.pem)), heard(by_name, ca=str(authority.pem)), heard(url, ca=mark),
                heard(url, ca=mark.upper().replace("SHA256", "sha256")), heard(url, ca=str(served)),
                heard(url, certificate=served),
            ):  # fmt: skip
                assert await asyncio.to_thread(good) == "Fairlead"
            for bad, said in (
                (heard(url), "not trusted"), (heard(url, ca=str(stranger.pem)), "not trusted"),
                (heard(url, certificate=stranger.pem), "not trusted"),
                (heard(url, ca="sha256:" + "00" * 32), "another certificate"),
                (heard(url, ca="sha256:12"), "not a finger"),
                (heard(url.replace("https", "http")), "closed the connection"),
            ):  # fmt: skip
                with pytest.raises(Unavailable, match=said) as caught:
                    await asyncio.to_thread(bad)
                assert caught.value.fix

    asyncio.run(check())


def test_https_to_a_plain_platform_says_so() -> None:
    async def check() -> None:
        async with door(None) as (url, _):
            for ca in (None, "sha256:" + "00" * 32):
                with pytest.raises(Unavailable, match="does not speak TLS"):
                    await asyncio.to_thread(heard(url.replace("http", "https"), ca=ca))

    asyncio.run(check())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_nothing_older_than_tls_1_2_is_spoken(authority: Authority, served: Path, version: ssl.TLSVersion) -> None:
    tls = Tls(authority.pair("server"), served)
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version

    async def check() -> None:
        async with door(tls) as (url, _), httpx.AsyncClient(verify=old) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(url)

    asyncio.run(check())


def test_a_renewed_certificate_is_taken_without_a_restart_and_a_bad_one_is_not(
    authority: Authority, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.api.tls.RELOAD_EVERY_S", 0.01)
    pair = authority.pair("server")
    tls = Tls(pair, served)
    first, renewed = fingerprint(tls.leaf), authority.pair("renewed")
    mark = fingerprint(renewed.leaf())

    async def answers_with(url: str, wanted: str) -> bool:
        return await asyncio.to_thread(lambda: _shows(url, wanted))

    async def check() -> None:
        async with door(tls) as (url, _):
            assert await answers_with(url, first)
            shutil.copy(renewed.certificate, pair.certificate)  # without its key: not a pair, for now
            await asyncio.sleep(0)
            tls.reload_if_changed()
            assert await answers_with(url, first)
            shutil.copy(renewed.key, pair.key)
            while not await answers_with(url, mark):
                pass
            assert await asyncio.to_thread(heard(url, certificate=served)) == "Fairlead"

    asyncio.run(check())


def _shows(url: str, wanted: str) -> bool:
    try:
        verification(Profile(url, "fl_a_b", ca=wanted))
    except Unavailable:
        return False
    return True


def test_what_cannot_be_served_is_refused_with_its_file_and_a_fix(authority: Authority, served: Path) -> None:
    good, other = authority.pair("good"), authority.pair("other")
    locked, old = authority.pair("locked", password=b"secret"), authority.pair("old", days=-3)
    none = authority.folder / "none.pem"
    wrong: dict[str, Pair] = {
        "cannot be read": Pair(none, good.key),
        "No such file": Pair(good.certificate, none),
        "holds no certificate": Pair(good.key, good.key),
        "is not a private key": Pair(good.certificate, good.certificate),
        "does not belong": Pair(good.certificate, other.key),
        "is encrypted": locked,
        "expired on": old,
    }
    for said, pair in wrong.items():
        with pytest.raises(Refused, match=said) as caught:
            Tls(pair, served)
        assert caught.value.fix and str(caught.value.field).startswith("--tls-")
        assert not served.exists()


def test_a_certificate_that_ends_soon_is_warned_of(authority: Authority, served: Path) -> None:
    assert "expires on" in str(Tls(authority.pair("soon", days=5), served).warning)
    assert Tls(authority.pair("long"), served).warning is None


def test_a_self_signed_certificate_is_made_once_and_its_key_is_closed(tmp_path: Path, served: Path) -> None:
    first = self_signed(tmp_path / "tls", "0.0.0.0")
    mark = fingerprint(Tls(first, served).leaf)
    assert fingerprint(self_signed(tmp_path / "tls", "0.0.0.0").leaf()) == mark
    assert stat.S_IMODE(first.key.stat().st_mode) == 0o600
    named = self_signed(tmp_path / "tls", "training.example")
    assert fingerprint(named.leaf()) != mark, "a host that it does not name needs another one"


def test_beyond_this_machine_only_with_tls_unless_one_insists(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert not ListenOptions(host).tls
    for host in ("0.0.0.0", "::", "192.0.2.7", "training.example"):
        with pytest.raises(Refused, match="without TLS") as caught:
            ListenOptions(host)
        assert "--tls-self-signed" in str(caught.value.fix) and "--behind-https" in str(caught.value.fix)
        assert ListenOptions(host, insecure=True).load(Home(tmp_path)) is None
        assert ListenOptions(host, behind_https=True).load(Home(tmp_path)) is None
        assert ListenOptions(host, self_signed=True).tls
    assert "--behind-https" in ListenOptions("0.0.0.0", behind_https=True).arguments(), "also for the process behind"
    with pytest.raises(InvalidSpec, match="a proxy serves TLS"):
        ListenOptions("0.0.0.0", self_signed=True, behind_https=True)
    for half in ({"cert": tmp_path}, {"key": tmp_path}, {"cert": tmp_path, "key": tmp_path, "self_signed": True}):
        with pytest.raises(InvalidSpec):
            ListenOptions("127.0.0.1", **half)  # type: ignore[arg-type]
