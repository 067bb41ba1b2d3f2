"""Promises of describe: right figures in one pass, what is peculiar is said, and it fits a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fairlead.cli.main import main
from fairlead.data import BadData
from fairlead.data.profile import ColumnProfile, Profile, describe
from fairlead.data.sampling import RowSample


def column(profile: Profile, name: str) -> ColumnProfile:
    return next(each for each in profile.columns if each.name == name)


def test_the_figures_of_a_table_are_right() -> None:
    rows = 50_000
    numbers = np.random.default_rng(1).normal(size=rows)
    table = pa.table({
        "few": ["a", "b", "b", None] * (rows // 4), "many": range(rows), "x": numbers,
        "odd": [float("nan"), float("inf"), 1.0, 2.0] * (rows // 4),
    })  # fmt: skip
    profile = describe(table, batch_rows=1_000)
    assert profile.rows == rows
    few, many, x, odd = (column(profile, name) for name in ("few", "many", "x", "odd"))
    assert (few.nulls, few.distinct, few.exact) == (rows // 4, 2, True)
    assert few.top == (("b", rows // 2), ("a", rows // 4))
    assert many.distinct is not None and not many.exact and abs(many.distinct / rows - 1) < 0.15
    assert (many.min, many.max, many.mean) == (0, rows - 1, (rows - 1) / 2)
    assert x.mean == pytest.approx(numbers.mean()) and x.std == pytest.approx(numbers.std(ddof=1))
    assert x.quantiles == pytest.approx(np.quantile(numbers, [0.05, 0.25, 0.5, 0.75, 0.95]), abs=0.06)
    assert (odd.strange, odd.mean) == (rows // 2, 1.5)


def test_what_is_peculiar_is_said(tmp_path: Path) -> None:
    lines = ["id,charge,same,gone,kind,pad"]
    for i in range(100):
        lines.append(f"k{i},{i / 2 if i % 10 else 'free'},1,,{'?' if i % 3 else 'x'},{'y ' if i % 2 else 'y'}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    told = "\n".join(describe(tmp_path / "t.csv").anomalies)
    for expected in ("id: is different in every row", "charge: is text, but 90 of 100 values are numbers",
                     "same: is the same in all rows", "gone: is never set", "kind: '?' seems to stand for",
                     "pad: 50 values have blanks"):  # fmt: skip
        assert expected in told


def test_a_column_that_does_not_fit_its_beginning_is_described_as_a_wider_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 400_000 + "x,2.5\n")
    profile = describe(tmp_path / "t.csv")
    assert [each.type for each in profile.columns] == ["string", "double"]
    assert "a: row 400,001: 'x' is no int64; read as string" in profile.anomalies
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 400_000 + "1\n")
    with pytest.raises(BadData, match="row 400,001"):
        describe(tmp_path / "t.csv")


def test_every_row_is_as_likely_to_be_drawn_as_any_other() -> None:
    table = pa.table({"i": np.arange(400_000)})
    sample = RowSample(table.schema)
    for batch in table.to_batches(max_chunksize=10_000):
        sample.add(batch)
    drawn = sample.table()
    assert drawn is not None and drawn.num_rows == 20_000
    assert len(set(drawn.column("i").to_pylist())) == 20_000
    assert np.mean(drawn.column("i").to_numpy()) == pytest.approx(200_000, rel=0.02)


def test_the_command_prints_a_profile_that_fits_and_one_for_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ",".join(f"a_rather_long_name_{i}" for i in range(6))
    rows = "\n".join(",".join((f"{i}", "some long words here", "x", "1.5", "", "\x1b[31mred")) for i in range(30))
    (tmp_path / "t.csv").write_text(f"{words}\n{rows}\n")
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["data", "describe", str(tmp_path / "t.csv")])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "\x1b" not in shown
    assert "30 rows, 6 columns" in shown and "is never set" in shown
    table = shown.split("\n", 1)[1].split("anomalies:")[0]
    assert all(len(line) <= 80 for line in table.splitlines())
    with pytest.raises(SystemExit):
        main(["data", "describe", str(tmp_path / "t.csv"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 30 and found["columns"][0]["max"] == 29
    with pytest.raises(SystemExit) as ended:
        main(["data", "describe", str(tmp_path / "nothing.csv")])
    assert ended.value.code == 3 and "fix:" in capsys.readouterr().err


def test_describing_needs_no_torch_and_help_needs_no_arrow(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    asked = (f"['data', 'describe', {str(tmp_path / 't.csv')!r}]", "torch"), ("['--help']", "pyarrow")
    for arguments, unwanted in asked:
        code = f"import sys\nfrom fairlead.cli.main import main\ntry: main({arguments})\nexcept SystemExit: pass\n"
        code += f"sys.exit({unwanted!r} in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
