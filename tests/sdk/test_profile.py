"""Promises about finding the platform: arguments, environment, profile, and a fix when there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.errors import Unauthenticated, Unavailable
from fairlead.sdk.client import Client
from fairlead.sdk.profile import alive, locate


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FAIRLEAD_URL", "FAIRLEAD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write(home: Path, **profile: object) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "profile.json").write_text(json.dumps(profile))


def test_the_profile_in_the_home_is_found_without_any_argument(home: Path) -> None:
    write(home, url="http://127.0.0.1:1", token="fl_a_b", pid=7, version="1")
    found = locate()
    assert (found.url, found.token, found.pid) == ("http://127.0.0.1:1", "fl_a_b", 7)


def test_the_environment_comes_before_the_profile_and_arguments_before_both(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, url="http://profile", token="fl_profile")
    monkeypatch.setenv("FAIRLEAD_URL", "http://environment/")
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_environment")
    assert (locate().url, locate().token) == ("http://environment", "fl_environment")
    assert locate("http://argument", "fl_argument").token == "fl_argument"


def test_a_token_alone_goes_to_the_platform_of_the_profile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, url="http://127.0.0.1:1", token="fl_admin", pid=3)
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_tenant")
    assert (locate().url, locate().token, locate().pid) == ("http://127.0.0.1:1", "fl_tenant", 3)


def test_the_profiles_token_never_goes_to_another_address(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, url="http://127.0.0.1:1", token="fl_admin")
    monkeypatch.setenv("FAIRLEAD_URL", "http://evil.example")
    with pytest.raises(Unauthenticated, match="evil"):
        locate()
    monkeypatch.setenv("FAIRLEAD_URL", "http://127.0.0.1:1/")
    assert locate().token == "fl_admin"


def test_a_home_given_as_an_argument_is_not_mixed_with_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "other", url="http://other", token="fl_other")
    monkeypatch.setenv("FAIRLEAD_URL", "http://environment")
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_environment")
    assert locate(home=tmp_path / "other").token == "fl_other"


def test_without_a_platform_the_error_says_how_to_start_one(home: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        Client()
    assert "fairlead up" in (caught.value.fix or "")
    assert str(home) in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "x"}', "\x00"])
def test_a_damaged_profile_is_said_to_be_one(home: Path, text: str) -> None:
    home.mkdir()
    (home / "profile.json").write_text(text)
    with pytest.raises(Unavailable, match=r"profile\.json"):
        locate()


def test_a_dead_control_plane_of_this_machine_is_reported_at_once(home: Path) -> None:
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    write(home, url="http://127.0.0.1:9", token="fl_a_b", pid=int(child.stdout))
    with pytest.raises(Unavailable) as caught:
        Client().nodes()
    assert "fairlead up" in (caught.value.fix or "")


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://127.0.0.1:notaport"])
def test_an_address_that_is_none_is_said_to_be_none(url: str) -> None:
    with pytest.raises(Unavailable):
        Client(url, "fl_a_b").health()


def test_a_process_that_only_waits_to_be_collected_does_not_live() -> None:
    assert alive(os.getpid())
    assert not alive(None)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(child.pid)
    child.wait()
