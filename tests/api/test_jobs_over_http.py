"""The way of a job over HTTP: submit, list, look, follow, fetch and cancel, and events as they happen."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.conftest import Served, Team
from tests.waiting import until

SLEEPER = {"name": "sleeper", "command": ["sleep", "600"], "priority": -5}


def _events(response: httpx.Response) -> Iterator[dict[str, str]]:
    """Server-sent events of a stream; comments come as ``{"": ...}``."""
    event: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(":")
            event[name] = event.get(name, "") + value.removeprefix(" ")
        elif event:
            yield event
            event = {}


def test_a_job_is_there_as_soon_as_submit_has_answered(alpha: Team) -> None:
    made = alpha.member.post("/api/v1/jobs", json=SLEEPER | {"labels": {"team": "a"}})
    assert made.status_code == 201
    view = made.json()
    detail = alpha.viewer.get(f"/api/v1/jobs/{view['id']}").json()
    assert detail["name"] == "sleeper" and detail["tenant"] == "alpha" and detail["labels"] == {"team": "a"}
    assert detail["spec"]["command"] == ["sleep", "600"] and detail["priority"] == -5
    assert detail["submitted_by"] == alpha.member.get("/api/v1/whoami").json()["token"]
    cancelled = alpha.member.post(f"/api/v1/jobs/{view['id']}/cancel")
    assert cancelled.status_code == 200 and cancelled.json()["state"] in ("stopping", "cancelled")
    until(lambda: alpha.member.get(f"/api/v1/jobs/{view['id']}").json()["state"] == "cancelled")
    assert alpha.member.post(f"/api/v1/jobs/{view['id']}/cancel").status_code == 409


def test_the_same_key_twice_is_one_job(alpha: Team) -> None:
    key = {"Idempotency-Key": "once-only"}
    first = alpha.member.post("/api/v1/jobs", json=SLEEPER | {"name": "keyed"}, headers=key)
    again = alpha.member.post("/api/v1/jobs", json=SLEEPER | {"name": "keyed"}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200) and first.json()["id"] == again.json()["id"]
    other = alpha.member.post("/api/v1/jobs", json=SLEEPER | {"name": "another"}, headers=key)
    assert other.status_code == 409 and other.json()["field"] == "Idempotency-Key"
    alpha.member.post(f"/api/v1/jobs/{first.json()['id']}/cancel")


def test_the_same_key_at_the_same_time_is_still_one_job(alpha: Team) -> None:
    def submit(_: int) -> httpx.Response:
        return alpha.member.post("/api/v1/jobs", json=SLEEPER | {"name": "raced"}, headers={"Idempotency-Key": "race"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    alpha.member.post(f"/api/v1/jobs/{answers[0].json()['id']}/cancel")


def test_keys_of_two_tenants_have_nothing_to_do_with_each_other(alpha: Team, beta: Team) -> None:
    key = {"Idempotency-Key": "shared-word"}
    made = [t.member.post("/api/v1/jobs", json=SLEEPER | {"name": "same"}, headers=key) for t in (alpha, beta)]
    assert [response.status_code for response in made] == [201, 201]
    for team, response in zip((alpha, beta), made, strict=True):
        team.member.post(f"/api/v1/jobs/{response.json()['id']}/cancel")


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_hold_every_job_once_in_the_order_asked_for(beta: Team, order: str) -> None:
    name = f"paged-{order}"
    made = [beta.member.post("/api/v1/jobs", json=SLEEPER | {"name": name}).json()["id"] for _ in range(7)]
    found: list[str] = []
    query: dict[str, Any] = {"name": name, "limit": 3, "order": order}
    while True:
        page = beta.viewer.get("/api/v1/jobs", params=query).json()
        assert len(page["items"]) <= 3 and page["total"] == 7
        found += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    for job in made:
        beta.member.post(f"/api/v1/jobs/{job}/cancel")
    until(lambda: beta.viewer.get("/api/v1/jobs", params={"name": name, "state": "cancelled"}).json()["total"] == 7)
    assert beta.viewer.get("/api/v1/jobs", params={"name": name, "state": "active"}).json()["items"] == []
    assert found == (made if order == "oldest" else made[::-1])


def test_a_dry_run_answers_and_stores_nothing(alpha: Team) -> None:
    spec = {"name": "dry", "command": ["true"]}
    answer = alpha.viewer.post("/api/v1/jobs/dry-run", json=spec)
    assert answer.status_code == 200 and answer.json()["admitted"] is True and answer.json()["reason"]["text"]
    refused = alpha.viewer.post("/api/v1/jobs/dry-run", json=spec | {"workers": 5000}).json()
    assert refused["admitted"] is False and "workers" in refused["reason"]["text"]
    assert alpha.viewer.get("/api/v1/jobs", params={"name": "dry"}).json()["total"] == 0


def test_a_job_says_why_it_is_as_it_is(alpha: Team, waiting: dict[str, Any]) -> None:
    why = alpha.viewer.get(f"/api/v1/jobs/{waiting['id']}/why")
    assert why.status_code == 200 and why.json()["reason"]["text"] and why.json()["job"]["id"] == waiting["id"]


def test_the_future_of_a_job_is_told_on_request(alpha: Team, waiting: dict[str, Any]) -> None:
    place = f"/api/v1/jobs/{waiting['id']}/why"
    assert alpha.viewer.get(place).json()["expected_finish_s"] is None
    ahead = alpha.viewer.get(place, params={"forecast": "true"})
    assert ahead.status_code == 200 and ahead.json()["reason"]["text"]
    assert alpha.viewer.get(place, params={"forecast": "perhaps"}).status_code == 422


def test_a_result_waits_for_the_end(alpha: Team, waiting: dict[str, Any]) -> None:
    response = alpha.viewer.get(f"/api/v1/jobs/{waiting['id']}/result")
    assert response.status_code == 409 and response.json()["code"] == "still-running"


def test_an_ended_job_gives_logs_result_and_files(alpha: Team, finished: dict[str, Any]) -> None:
    assert finished["state"] == "succeeded", finished["message"]
    place = f"/api/v1/jobs/{finished['id']}"
    lines = alpha.viewer.get(f"{place}/logs").json()
    assert [line["text"] for line in lines][-2:] == ["hello from alpha", "bye"]
    assert [line["text"] for line in alpha.viewer.get(f"{place}/logs?tail=1").json()] == ["bye"]
    assert alpha.viewer.get(f"{place}/logs?tail=0").json() == []
    worker = lines[-1]["worker"]
    assert {line["worker"] for line in alpha.viewer.get(f"{place}/logs?worker={worker}").json()} == {worker}
    assert {line["worker"] for line in alpha.viewer.get(f"{place}/logs?rank=0").json()} == {worker}
    assert alpha.viewer.get(f"{place}/logs?rank=7").status_code == 404
    result = alpha.viewer.get(f"{place}/result").json()
    assert result["state"] == "succeeded" and "answer.txt" in result["artifacts"]
    file = alpha.viewer.get(f"{place}/artifacts/answer.txt")
    assert file.content == b"42" and file.headers["content-length"] == "2"
    assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''answer.txt"
    assert file.headers["content-type"] == "application/octet-stream"


def test_a_short_job_runs_once(alpha: Team, finished: dict[str, Any]) -> None:
    assert [generation["outcome"] for generation in finished["generations"]] == ["finished"]


def test_a_job_is_found_by_id_by_its_beginning_and_by_name(alpha: Team, finished: dict[str, Any]) -> None:
    for ref in (finished["id"], finished["id"][:-1], "finished"):
        assert alpha.viewer.get(f"/api/v1/jobs/{ref}").json()["id"] == finished["id"]


def test_following_the_log_of_an_ended_job_ends(alpha: Team, finished: dict[str, Any]) -> None:
    with alpha.viewer.stream("GET", f"/api/v1/jobs/{finished['id']}/logs?follow=true&tail=2") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = list(_events(response))
    assert [event["event"] for event in events] == ["line", "line", "end"]
    assert [json.loads(event["data"])["text"] for event in events[:2]] == ["hello from alpha", "bye"]
    place = {"Last-Event-ID": events[1]["id"]}
    with alpha.viewer.stream("GET", f"/api/v1/jobs/{finished['id']}/logs?follow=true", headers=place) as response:
        assert [event["event"] for event in _events(response)] == ["end"]


def test_a_log_is_followed_from_the_first_line_to_the_end_of_the_job(beta: Team) -> None:
    script = "echo first; sleep 1; echo second"
    made = beta.member.post("/api/v1/jobs", json={"name": "talker", "command": ["sh", "-c", script], "priority": 100})
    with beta.viewer.stream("GET", f"/api/v1/jobs/{made.json()['id']}/logs?follow=true") as response:
        events = [event for event in _events(response) if "event" in event]
    texts = [json.loads(event["data"])["text"] for event in events if event["event"] == "line"]
    assert texts[-2:] == ["first", "second"] and events[-1]["event"] == "end"


def test_events_arrive_as_they_happen_and_go_on_after_a_break(alpha: Team) -> None:
    newest = alpha.viewer.get("/api/v1/events", params={"after": -1}).json()
    after = newest[-1]["id"] if newest else 0
    with alpha.viewer.stream("GET", f"/api/v1/events/stream?after={after}") as response:
        stream = _events(response)
        made = alpha.member.post("/api/v1/jobs", json=SLEEPER | {"name": "noticed"}).json()
        first = next(event for event in stream if "data" in event and json.loads(event["data"])["job"] == made["id"])
        assert first["event"] == "job-submitted" and int(first["id"]) == json.loads(first["data"])["id"] > after
    alpha.member.post(f"/api/v1/jobs/{made['id']}/cancel")
    again = {"Last-Event-ID": first["id"]}
    with alpha.viewer.stream("GET", f"/api/v1/events/stream?job={made['id']}", headers=again) as response:
        following = next(event for event in _events(response) if "data" in event)
        assert int(following["id"]) > int(first["id"]) and json.loads(following["data"])["job"] == made["id"]


def test_a_silent_stream_stays_open_with_signs_of_life(platform_server: Served, beta: Team) -> None:
    caller = platform_server.caller(beta.tokens["member"], tight=True)
    with caller, caller.stream("GET", "/api/v1/events/stream?after=9000000000") as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(4)] == [": keep-alive", ""] * 2


def test_a_stream_ends_when_its_token_is_revoked(platform_server: Served, beta: Team) -> None:
    made = beta.admin.post("/api/v1/tokens", json={"role": "viewer"}).json()
    caller = platform_server.caller(made["token"], tight=True)
    with caller, caller.stream("GET", "/api/v1/events/stream?after=9000000000") as response:
        stream = _events(response)
        next(stream)
        assert beta.admin.delete(f"/api/v1/tokens/{made['id']}").status_code == 200
        last = [event for event in stream if "data" in event]
    assert [event["event"] for event in last] == ["error"] and json.loads(last[0]["data"])["code"] == "unauthenticated"


def test_a_token_may_not_hold_too_many_streams(platform_server: Served, beta: Team) -> None:
    place = "/api/v1/events/stream?after=9000000000"
    with platform_server.caller(beta.tokens["tenant-admin"], tight=True) as caller:
        with caller.stream("GET", place), caller.stream("GET", place):
            third = caller.get(place)
            assert third.status_code == 429 and "streams" in third.json()["detail"]
        until(lambda: _opens(caller, place))


def _opens(caller: httpx.Client, place: str) -> bool:
    with caller.stream("GET", place) as response:
        return response.status_code == 200


def test_many_clients_at_once_are_all_served(alpha: Team) -> None:
    failures: list[str] = []

    def ask() -> None:
        for _ in range(20):
            response = alpha.viewer.get("/api/v1/jobs", params={"limit": 5})
            if response.status_code != 200:
                failures.append(response.text)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_node_is_cordoned_and_taken_back(admin: httpx.Client, alpha: Team) -> None:
    name = alpha.viewer.get("/api/v1/nodes").json()[-1]["name"]
    assert admin.post(f"/api/v1/nodes/{name}/cordon").json()["state"] == "cordoned"
    assert admin.post(f"/api/v1/nodes/{name}/uncordon").json()["state"] == "ready"


def test_a_tenant_is_changed_in_what_is_named_and_stays_in_the_rest(admin: httpx.Client, beta: Team) -> None:
    changed = admin.patch("/api/v1/tenants/beta", json={"quota": 3, "sla": {"class": "silver"}}).json()
    assert (changed["weight"], changed["quota"], changed["sla"]) == (2.0, 3, {"class": "silver"})
    changed = admin.patch("/api/v1/tenants/beta", json={"quota": None, "sla": {}}).json()
    assert (changed["weight"], changed["quota"], changed["sla"]) == (2.0, None, {})
    assert beta.viewer.get("/api/v1/tenants/beta").json()["name"] == "beta"
