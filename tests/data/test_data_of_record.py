"""Promises about the data sets of record in their compact forms: they are read as they were published."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from fairlead.data import read

FOLDER = Path(os.environ.get("FAIRLEAD_DATA", "nowhere"))
here = pytest.mark.skipif(not (FOLDER / "cifar10").is_dir(), reason="FAIRLEAD_DATA does not hold the data sets")


@here
def test_a_packed_batch_of_cifar10_has_the_pixels_that_were_published() -> None:
    table = read(FOLDER / "cifar10" / "test_batch.zip").table()
    pixels = np.concatenate([chunk.flatten().to_numpy() for chunk in table.column("image").chunks]).reshape(-1, 1024, 3)
    planes = pixels.transpose(0, 2, 1).reshape(-1, 3072)
    published = np.concatenate([table.column("label").to_numpy()[:, None], planes], axis=1).tobytes()
    assert hashlib.md5(published, usedforsecurity=False).hexdigest() == "803d5f7f4d78ea53de84dbe85f74fb6d"


@here
def test_kdd99_is_read_with_its_names_and_types() -> None:
    source = read(FOLDER / "kdd99" / "kddcup.data_10_percent.gz")
    kinds = [str(field.type) for field in source.schema]
    assert (kinds.count("string"), kinds.count("double"), kinds.count("int64")) == (4, 15, 23)
    rows, smurfs = 0, 0
    for batch in source.batches():
        rows += batch.num_rows
        smurfs += pc.sum(pc.equal(batch.column("label"), "smurf.")).as_py()
    assert (rows, smurfs) == (494_021, 280_790)


@here
def test_the_other_data_sets_are_read_whole() -> None:
    bank = read(FOLDER / "bank_marketing" / "bank-full.csv.gz").table()
    assert (bank.num_rows, pc.sum(pc.equal(bank.column("y"), "yes")).as_py()) == (45_211, 5_289)
    imdb = read(FOLDER / "imdb" / "imdb_test.parquet")
    assert imdb.rows == sum(batch.num_rows for batch in imdb.batches()) == 25_000
    adult = read(FOLDER / "adult" / "adult.test.gz").table()
    assert (adult.num_rows, adult.column_names[-1], adult.column("sex")[0].as_py()) == (16_281, "income", "Male")
    telco = read(FOLDER / "telco_churn" / "Telco-Customer-Churn.csv").table()
    assert (telco.num_rows, telco.column("TotalCharges").null_count) == (7_043, 11)
