"""Promises about the wire: what is safe to repeat survives a stumbling server; errors arrive as they were meant."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fairlead.errors import Conflict, FairleadError, InvalidSpec, Unavailable
from fairlead.sdk.client import Client
from fairlead.sdk.profile import Profile
from fairlead.sdk.sse import ServerEvent, parse
from fairlead.sdk.transport import Transport

Answer = Callable[[BaseHTTPRequestHandler], None]


class Script:
    """A peer that gives its answers one after the other, and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, str]]] = []


@pytest.fixture
def peer() -> Iterator[Callable[..., tuple[str, Script]]]:
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: Answer) -> tuple[str, Script]:
        script = Script(*answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                script.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                answer(self)

            do_GET = do_POST = do_PUT = do_HEAD = handle_one

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", script

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def says(status: int, body: Any, kind: str = "application/json") -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)

    return answer


def streams(text: str) -> Answer:
    """A stream that says this and then breaks off, as a server does that is killed."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(text.encode())
        handler.close_connection = True

    return answer


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


JOB = {"id": "a-1", "name": "a", "tenant": "t", "state": "queued", "submitted_s": 1.0, "submitted_by": "x"}


def test_a_submit_is_repeated_with_the_same_key_until_it_is_answered(peer: Any, tmp_path: Any) -> None:
    starting = says(503, Unavailable("not leading").problem())
    url, script = peer(says(200, {}), hangs_up, starting, says(201, JOB))
    job = Client(url, "fl_a_b").submit({"name": "a", "command": ["true"]}, folder=tmp_path)
    posts = [headers["idempotency-key"] for method, _, headers in script.asked if method == "POST"]
    assert job.id == "a-1"
    assert len(posts) == 3
    assert len(set(posts)) == 1


def test_a_bundle_is_sent_only_when_it_is_missing(peer: Any, tmp_path: Any) -> None:
    for first, methods in ((says(200, {}), ["HEAD", "POST"]), (says(404, {}), ["HEAD", "PUT", "POST"])):
        url, script = peer(first, *([says(201, {})] if len(methods) == 3 else []), says(201, JOB))
        Client(url, "fl_a_b").submit({"name": "a", "tenant": "t", "command": ["true"]}, folder=tmp_path)
        assert [method for method, _, _ in script.asked] == methods
        assert all("tenant=t" in path for method, path, _ in script.asked if method != "POST")


def test_what_would_act_twice_is_not_repeated(peer: Any) -> None:
    url, script = peer(hangs_up)
    with pytest.raises(Unavailable):
        Client(url, "fl_a_b").create_tenant("t")
    assert len(script.asked) == 1


def test_an_error_of_the_server_arrives_as_the_error_it_meant(peer: Any) -> None:
    meant = InvalidSpec("is wrong", field="workers.max", value=3, fix="mend it")
    url, _ = peer(says(422, meant.problem(), "application/problem+json"))
    with pytest.raises(InvalidSpec) as caught:
        Client(url, "fl_a_b").job("x")
    assert (str(caught.value), caught.value.fix, caught.value.value) == ("workers.max: is wrong", "mend it", 3)
    url, script = peer(says(409, Conflict("taken").problem()))
    with pytest.raises(Conflict):
        Client(url, "fl_a_b").job("x")
    assert len(script.asked) == 1


def test_a_field_that_the_server_refuses_is_named_with_its_file(peer: Any, tmp_path: Any) -> None:
    url, _ = peer(says(200, {}), says(422, InvalidSpec("too many", field="workers.max").problem()))
    (tmp_path / "job.yaml").write_text("name: a\ncommand: [true]\n".replace("true", "'true'"))
    with pytest.raises(InvalidSpec) as caught:
        Client(url, "fl_a_b").submit(tmp_path / "job.yaml")
    assert str(caught.value) == "job.yaml: workers.max: too many"


@pytest.mark.parametrize("answer", [says(200, b"<html>hello</html>", "text/html"), says(404, b"nothing", "text/plain")])
def test_a_server_that_is_not_a_platform_is_said_to_be_none(peer: Any, answer: Answer) -> None:
    url, _ = peer(answer)
    with pytest.raises(FairleadError, match=r"API|answered 404") as caught:
        Client(url, "fl_a_b").nodes()
    assert "FAIRLEAD_URL" in (caught.value.fix or "")


def test_following_a_log_goes_on_after_a_restart_where_it_was(peer: Any) -> None:
    one = 'event: line\ndata: {"worker": "w0", "text": "one"}\nid: {"w0": 4}\n\nevent: line\ndata: {"worker'
    two = ': sign of life\n\nevent: line\ndata: {"worker": "w0", "text": "two\u2028"}\n\nevent: end\ndata: {}\n\n'
    url, script = peer(streams(one), hangs_up, streams(two))
    lines = [line.text for line in Client(url, "fl_a_b").logs("a", follow=True, tail=5)]
    assert lines == ["one", "two\u2028"]
    assert "tail=5" in script.asked[0][1]
    assert script.asked[-1][2]["last-event-id"] == '{"w0": 4}'
    assert "tail" not in script.asked[-1][1]


def test_an_error_in_the_middle_of_a_stream_is_raised(peer: Any) -> None:
    problem = json.dumps(InvalidSpec("no more").problem())
    url, _ = peer(streams(f"event: error\ndata: {problem}\n\n"))
    with pytest.raises(InvalidSpec, match="no more"):
        list(Client(url, "fl_a_b").logs("a", follow=True))


def test_a_file_is_only_there_when_it_is_whole_and_never_outside_of_the_folder(peer: Any, tmp_path: Any) -> None:
    result = {"job": "a-1", "state": "succeeded", "artifacts": ["sub/model.bin"]}
    url, script = peer(says(200, result), says(200, b"weights"))
    Client(url, "fl_a_b").result("a", download=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["model.bin"]
    assert (tmp_path / "out" / "sub" / "model.bin").read_bytes() == b"weights"
    assert script.asked[1][1].endswith("/artifacts/sub/model.bin")
    url, _ = peer(says(200, {**result, "artifacts": ["../evil"]}), says(200, b"x"))
    with pytest.raises(InvalidSpec, match="leave the folder"):
        Client(url, "fl_a_b").result("a", download=tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_files_are_not_put_into_a_file(peer: Any, tmp_path: Any) -> None:
    url, _ = peer(says(200, {"job": "a-1", "state": "succeeded", "artifacts": ["model.bin"]}), says(200, b"weights"))
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InvalidSpec, match="out is a file"):
        Client(url, "fl_a_b").result("a", download=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_nobody_at_an_address_of_ones_own_is_told_to_check_it() -> None:
    with pytest.raises(Unavailable, match="no platform answers") as caught:
        Client("http://127.0.0.1:1", "fl_a_b").nodes()
    assert "FAIRLEAD_URL" in str(caught.value.fix)


def test_names_go_into_an_address_safely(peer: Any) -> None:
    url, script = peer(says(404, InvalidSpec("no").problem()))
    with pytest.raises(InvalidSpec):
        Client(url, "fl_a_b").why("../tenants?x=#")
    assert script.asked[0][1] == "/api/v1/jobs/..%2Ftenants%3Fx%3D%23/why"


def test_the_token_goes_with_every_call(peer: Any) -> None:
    url, script = peer(says(200, {"status": "ok"}))
    assert Transport(Profile(url, "fl_a_b")).call("GET", "/healthz") == {"status": "ok"}
    assert script.asked[0][2]["authorization"] == "Bearer fl_a_b"
    with pytest.raises(Unavailable, match="malformed"):
        Client(url, "fl_\u2603")


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_events_are_read_however_the_stream_is_cut(cut: int) -> None:
    first = 'id: 7\r\nevent: x\r\ndata: {"a": "\u00fc"}\r\n\r\n: comment\n\n'
    raw = (first + "data: one\ndata: two\n\nevent: end\n\ndata: cut o").encode()
    pieces = [raw[start : start + cut] for start in range(0, len(raw), cut)]
    assert list(parse(pieces)) == [
        ServerEvent("x", {"a": "\u00fc"}, "7"),
        ServerEvent("message", "one\ntwo", "7"),
        ServerEvent("end", None, "7"),
    ]
