"""HTTP requests to the API: authentication, retries where safe, and errors as exceptions."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import httpx

from fairlead.errors import FairleadError, RateLimited, Unavailable
from fairlead.sdk.profile import Profile, alive
from fairlead.sdk.sse import ServerEvent, parse
from fairlead.sdk.tls_trust import tls_error, verification

PREFIX = "/api/v1"
PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5)  # between attempts; a restarting control plane is back within their sum
STREAM_SILENCE_S = 60.0  # the server sends keep-alives more often
LOOPBACK = tuple(f"{scheme}://{host}" for scheme in ("http", "https") for host in ("127.", "localhost", "[::1]"))


class Transport:
    """Requests to one platform. ``safe`` requests (repeatable without a second effect) survive a server restart."""

    def __init__(self, profile: Profile, timeout_s: float = 30.0) -> None:
        self.profile = profile
        try:
            self._http = httpx.Client(
                base_url=profile.url,
                headers={"Authorization": f"Bearer {profile.token}"},
                timeout=httpx.Timeout(timeout_s, connect=5.0),
                verify=verification(profile),
                trust_env=not profile.url.startswith(LOOPBACK),  # no proxy for loopback
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise Unavailable(
                f"{profile.url!r} or its token is malformed: {error}", fix="check FAIRLEAD_URL and FAIRLEAD_TOKEN"
            ) from None

    def close(self) -> None:
        self._http.close()

    def call(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None,
        content: bytes | None = None, headers: Mapping[str, str] | None = None, safe: bool = True, patient: bool = True,
    ) -> Any:  # fmt: skip
        """The decoded answer, or the server's error as an exception; ``patient``: with retries."""
        sent = dict(headers or {})
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        request = self._http.build_request(method, _place(path), params=_given(params), content=content, headers=sent)
        response = self._answer(request, PAUSES_S if patient else (), safe=safe)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError:
            raise Unavailable(f"{self.profile.url} does not speak Fairlead's API", fix="check FAIRLEAD_URL") from None

    def exists(self, path: str, *, params: Mapping[str, Any] | None = None) -> bool:
        """True if HEAD of the path succeeds; a failed HEAD has no body that would explain it."""
        request = self._http.build_request("HEAD", _place(path), params=_given(params))
        return self._answer(request, PAUSES_S, accept=range(400, 500)).status_code < 400

    def _answer(
        self, request: httpx.Request, pauses_s: Sequence[float], *, safe: bool = True, accept: Collection[int] = ()
    ) -> httpx.Response:
        failure: FairleadError
        for pause_s in (*pauses_s, None):
            try:
                response = self._http.send(request)
                if response.status_code < 400 or response.status_code in accept:
                    return response
                failure = problem(response)
                if not safe or not isinstance(failure, Unavailable | RateLimited):
                    raise failure
            except httpx.TransportError as error:
                failure = self._unreachable(error)
                if not safe and not isinstance(error, httpx.ConnectError):
                    raise failure from None
            if pause_s is None or self._server_died():
                break
            time.sleep(pause_s)
        raise failure

    def _server_died(self) -> bool:
        """True if the control plane on this machine is dead, so that retries are useless."""
        return self.profile.pid is not None and not alive(self.profile.pid)

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(
                f"the platform at {self.profile.url} does not answer", fix="try again, or start it: fairlead up"
            )
        if isinstance(error, httpx.UnsupportedProtocol):
            return Unavailable(f"{self.profile.url!r} is not a URL", fix="write it like http://127.0.0.1:8471")
        if self.profile.url.startswith("https://") and (problem := tls_error(self.profile.url, error)) is not None:
            return problem
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and self.profile.url.startswith("http://"):
            fix = "use https:// if it has TLS; else try again, or start it: fairlead up"
            return Unavailable(f"{self.profile.url} closed the connection without an answer", fix=fix)
        elsewhere = (
            "" if self.profile.pid is not None else ", or check FAIRLEAD_URL"
        )  # only profiles of this machine have a pid
        return Unavailable(f"no platform answers at {self.profile.url}", fix=f"start it: fairlead up{elsewhere}")

    def stream(
        self, path: str, *, params: Mapping[str, Any] | None = None, last_id: str | None = None
    ) -> Iterator[ServerEvent]:
        """Server-sent events until the server ends the stream; a lost connection raises ``httpx.TransportError``."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        timeout = httpx.Timeout(STREAM_SILENCE_S, connect=5.0)
        given = _given(params)
        with self._http.stream("GET", _place(path), params=given, headers=headers, timeout=timeout) as response:
            _raise_for_status(response)
            for event in parse(response.iter_bytes()):
                if event.kind == "error" and isinstance(event.data, dict) and "detail" in event.data:
                    raise FairleadError.from_problem(event.data)
                yield event

    def follow(self, path: str, *, params: Mapping[str, Any], until: str | None = None) -> Iterator[ServerEvent]:
        """Like :meth:`stream`, until an event of kind ``until``; reconnects after a lost connection at the last id."""
        failures = 0
        last_id: str | None = None
        while True:
            try:
                for event in self.stream(path, params=params, last_id=last_id):
                    failures = 0
                    if event.id and event.id != last_id:
                        last_id = event.id
                        params = {
                            name: value for name, value in params.items() if name != "tail"
                        }  # the last lines were already sent
                    if event.kind == until:
                        return
                    yield event
            except (httpx.TransportError, Unavailable) as error:
                if failures >= len(PAUSES_S) or self._server_died():
                    raise (self._unreachable(error) if isinstance(error, httpx.TransportError) else error) from None
            # The stream ended without its last event: the server restarted, so reconnect.
            time.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1

    def download(self, path: str) -> Iterator[bytes]:
        """The bytes of a file in chunks."""
        try:
            with self._http.stream("GET", _place(path)) as response:
                _raise_for_status(response)
                yield from response.iter_bytes(1 << 18)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None


def problem(response: httpx.Response) -> FairleadError:
    """The error in a problem document; for other answers an error with their status."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and "detail" in document:
        return FairleadError.from_problem(document)
    kind = Unavailable if response.status_code in (502, 503, 504) else FairleadError
    answered = f"{response.url.host} answered {response.status_code} {response.reason_phrase}"
    return kind(answered.rstrip(), fix="check FAIRLEAD_URL")


def _raise_for_status(response: httpx.Response) -> None:
    if response.status_code >= 400:
        response.read()
        raise problem(response)


def _place(path: str) -> str:
    return path if path == "/healthz" else PREFIX + path


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}
