"""Secrets stay out of what workers print and say, however it is cut and quoted."""

from __future__ import annotations

import base64
import itertools
import json
import time
import urllib.parse
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import wire
from fairlead.agent.node.multi_match import MultiMatch
from fairlead.agent.node.secret_scrubber import Scrubber

KEY = "s3cr3t/Wörd+with spaces"


def scrubbed(secrets: dict[str, str], pieces: Iterable[bytes]) -> bytes:
    scrubber = Scrubber(secrets)
    return b"".join([*map(scrubber.feed, pieces), scrubber.finish()])


@given(st.text(), st.text(), st.lists(st.integers(0, 60), max_size=6))
def test_a_value_cut_anywhere_is_replaced_and_the_rest_is_untouched(before: str, after: str, cuts: list[int]) -> None:
    if KEY in before + after:
        return
    data = f"{before}<{KEY}>{after}".encode("utf-8", "replace")
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(places)]
    told = scrubbed({"KEY": KEY}, pieces)
    assert told == data.replace(KEY.encode(), b"***KEY***")


@given(st.data())
def test_of_secrets_that_overlap_none_gets_through_whole(data: st.DataObject) -> None:
    letters = st.text("ab", min_size=4, max_size=7)
    values = data.draw(st.lists(letters, min_size=1, max_size=4, unique=True))
    secrets = {f"S{number}": value for number, value in enumerate(values)}
    pieces = data.draw(st.lists(st.one_of(st.text("abc", max_size=6), st.sampled_from(values)), max_size=12))
    told = scrubbed(secrets, [piece.encode() for piece in pieces]).decode()
    assert not any(value in told for value in values)


def test_each_byte_may_come_alone() -> None:
    data = f"key={KEY}\n".encode()
    assert scrubbed({"KEY": KEY}, [bytes([byte]) for byte in data]) == b"key=***KEY***\n"


def test_the_longer_of_two_secrets_with_the_same_beginning_is_waited_for() -> None:
    both = {"SHORT": "abcd", "LONG": "abcdefgh"}
    assert scrubbed(both, [b"x abcd", b"efgh y"]) == b"x ***LONG*** y"
    assert scrubbed(both, [b"x abcd", b" y"]) == b"x ***SHORT*** y"
    assert scrubbed(both, [b"x abcd", b"ef", b" y"]) == b"x ***SHORT***ef y"


def test_a_secret_that_ends_as_another_begins_is_replaced() -> None:
    assert scrubbed({"A": "secret", "B": "tulip"}, [b"my secret", b" ends\n"]) == b"my ***A*** ends\n"
    assert scrubbed({"A": "secret", "B": "tulip"}, [b"secret", b"ulip"]) == b"***A***ulip"


def test_a_secret_that_is_broken_off_at_the_end_is_not_told() -> None:
    assert scrubbed({"KEY": "abcdefgh"}, [b"it is abcdefg"]) == b"it is ***KEY***"
    assert scrubbed({"KEY": "abcdefgh"}, [b"it is ab"]) == b"it is ab"


def test_a_line_is_told_at_once_although_more_may_come() -> None:
    assert Scrubber({"KEY": KEY}).feed(b"step 1\n") == b"step 1\n"


@pytest.mark.parametrize(
    "shape",
    [
        lambda value: json.dumps({"key": value}),
        lambda value: repr({"key": value}),
        lambda value: urllib.parse.urlencode({"key": value}, quote_via=urllib.parse.quote),
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
        lambda value: base64.b64encode(f"me:{value}".encode()).decode(),
        lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
        lambda value: base64.b64encode(f"somebody:{value}@host".encode()).decode(),
        lambda value: value.encode().hex(),
        lambda value: f"  {value}  ",
    ],
)
def test_quoted_and_encoded_values_are_found_too(shape: object) -> None:
    for value in (KEY, 'quo"ted\\and\nof two lines', "plainvalue"):
        text = shape(value)  # type: ignore[operator]
        told = scrubbed({"KEY": value}, [text.encode()]).decode()
        assert "***KEY***" in told, text


def test_the_lines_of_a_long_key_are_found_one_by_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEA\n-----END KEY-----\n"
    told = scrubbed({"KEY": key}, [b"  | " + line.encode() + b"\n" for line in key.splitlines()])
    assert b"MIIEvQ" not in told and b"BAQEFA" not in told


def test_what_a_worker_reports_is_scrubbed_in_all_its_texts() -> None:
    scrubber = Scrubber({"KEY": KEY})
    raised = scrubber.message(wire.Raised(error=f"bad {KEY}", trace=f"line\n{KEY}", permanent=True))
    assert raised == wire.Raised(error="bad ***KEY***", trace="line\n***KEY***", permanent=True)
    progress = wire.Progress(generation=1, step=2, total_steps=3, steps=[{"step": 2.0, KEY: 1.0}])
    assert scrubber.message(progress).steps == [{"step": 2.0, "***KEY***": 1.0}]
    finished = wire.Finished(generation=1, step=2, artifacts=[KEY])
    assert scrubber.message(finished).artifacts == ["***KEY***"]
    clean = wire.Raised(error="nothing of the kind")
    assert scrubber.message(clean) is clean


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 100))
def test_a_text_that_was_shortened_in_the_middle_of_a_secret_does_not_tell_half_of_it(
    before: str, after: str, cut: int
) -> None:
    value = "pässword-of-the-größte-database"
    scrubber = Scrubber({"KEY": value})
    for text in (f"{before}{value}"[:cut], f"{value}{after}"[cut:], f"{(before + value)[:cut]} (train.py:3)"):
        told = scrubber.message(wire.Raised(error=text)).error
        assert value[:16] not in told and not told.startswith(value[-16:])
        assert "pässw" in text or "base" in text or told == text


def test_an_error_in_one_line_is_scrubbed_of_values_of_several() -> None:
    value = "first  line\nsecond\tline"
    assert Scrubber({"KEY": value}).text("bad first line second line!") == "bad ***KEY***!"


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=8), st.data())
def test_no_needle_that_is_there_is_overlooked(needles: list[bytes], data: st.DataObject) -> None:
    pieces = st.lists(st.one_of(st.binary(max_size=9), *map(st.just, needles)), max_size=8)
    hay = b"".join(data.draw(pieces))
    assert {needle for needle in needles if needle in hay} <= set(MultiMatch(needles).candidates(hay))


def test_a_secret_of_thousands_of_lines_is_searched_for_as_fast_as_any_other() -> None:
    secret = "\n".join(f"{number:x}-{number * 7919 % 10_007:0>10}" for number in range(2000))
    scrubber = Scrubber({"KEY": secret})
    text = "".join(f"step {number}: loss {number / 7}\n" for number in range(45_000))  # a megabyte
    begun_s = time.process_time()
    scrubber.message(wire.Raised(error=text))
    scrubber.feed(text[: 1 << 18].encode())
    assert time.process_time() - begun_s < 1.0, "it was five seconds when each line was looked for by itself"
    told = scrubber.message(wire.Raised(error=f"{text[:50_000]} {secret.splitlines()[1234]}")).error
    assert told == f"{text[:50_000]} ***KEY***"


def test_a_message_made_to_be_costly_is_refused_and_not_looked_at() -> None:
    lines = [f"same-beginning-{number:0>4}" for number in range(1500)]
    scrubber = Scrubber({"KEY": "\n".join(lines)})
    begun_s = time.process_time()
    with pytest.raises(ValueError, match="too many possible secrets"):
        scrubber.message(wire.Finished(1, 1, artifacts=["same-beginning"] * 100_000))
    assert time.process_time() - begun_s < 1.0


def test_values_that_repeat_themselves_take_no_time_without_end() -> None:
    scrubber = Scrubber({"KEY": "A" * 30_000 + "B"})
    begun_s = time.process_time()
    for text in ("A" * 29_000 + "C", "A" * 100_000, "A" * 15_100 + "C" + "A" * 15_100):
        scrubber.text(text)
        scrubber.feed(text.encode())
    assert time.process_time() - begun_s < 10.0


def test_the_order_to_launch_shows_no_value_when_it_is_printed() -> None:
    assert repr(wire.Secrets({"KEY": KEY})) == "Secrets(KEY)"
