"""``fairlead data``: a reference that is half a version is a mistake, told before anything is asked or dropped."""

from __future__ import annotations

import pytest

from fairlead.cli.errors import execute
from fairlead.cli.main import app


@pytest.mark.parametrize("verb", ["show", "drop"])
@pytest.mark.parametrize("ref", ["bank@", "bank@3f2", "bank@zzzzzz", "Bank"])
def test_half_a_version_is_refused_and_never_means_all_of_them(
    verb: str, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(app, ["data", verb, ref]) == 2
    told = capsys.readouterr().err
    assert f"'{ref}' is not a data set name" in told and "fix: write its name" in told
