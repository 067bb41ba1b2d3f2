"""The public data sets that Fairlead can download: URLs, checksums, file names and licences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fairlead.errors import NotFound


@dataclass(frozen=True, slots=True)
class Download:
    """A published file with its URLs and, if known, its checksum as ``algorithm:digest``."""

    name: str
    urls: tuple[str, ...]
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetOrigin:
    """One data set: its published downloads, and the two forms in which a local folder may hold it."""

    name: str
    title: str
    folder: str
    downloads: tuple[Download, ...]
    unpacked_files: Mapping[str, str]  # unpacked file -> checksum of its content
    compact_files: Mapping[str, str]  # file of a local folder -> its checksum
    licence: str


_UCI = "https://archive.ics.uci.edu"
_KDD = "http://kdd.ics.uci.edu/databases/kddcup99"
_KDD_SUMS = {
    "kddcup.data_10_percent.gz": "sha256:f8c8267ebcd9c0ed1fd7d6277fe5bfff8732e9b7db8e61b873542b2a534b6f9a",
    "corrected.gz": "sha256:547dfb9c0f0dc1d9944219ec79e851191faebaeb8acbfa1cd171c418397052a4",
}

CIFAR10 = DatasetOrigin(
    name="cifar10",
    title="CIFAR-10: 60,000 pictures of 32 x 32 pixels, 10 classes",
    folder="cifar10",
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    unpacked_files={
        "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    compact_files={
        "data_batch_1.zip": "sha256:8f91cbd78ab99ce25746471fdb3da31ed38c0ee21427869dc6016a80b8844c67",
        "data_batch_2.zip": "sha256:f82ca9f6fed81f3840da282aaae3241ecabeca4d7086959b91227f13b3078b7d",
        "data_batch_3.zip": "sha256:20d470d8854278f8dd72c45b99da5e5d3b38b536205236005352a7672f210a38",
        "data_batch_4.zip": "sha256:644891935652c8061a88ac604c162f0d568caa5326bc432ae7a14a11258c1227",
        "data_batch_5.zip": "sha256:8960270e8212867f91e21f35911463ab8294a56e0733f6cfe9c7d48a511386ec",
        "test_batch.zip": "sha256:d90106b3efd1e169b475c6d622092b451596700141a5ce78e32edd9a18112b7a",
    },
    licence="no formal licence; its authors ask for a citation of their report (Krizhevsky 2009)",
)

BANK = DatasetOrigin(
    name="bank",
    title="UCI Bank Marketing: 45,211 phone calls of a bank, 2 classes",
    folder="bank_marketing",
    downloads=(
        Download(
            "bank.zip",
            (f"{_UCI}/static/public/222/bank+marketing.zip", f"{_UCI}/ml/machine-learning-databases/00222/bank.zip"),
        ),
    ),
    unpacked_files={"bank-full.csv.gz": "md5:e6b0ca77f3f200ec5428e04dd104da53"},
    compact_files={"bank-full.csv.gz": "sha256:a33820520e31d26b498e31003e99eb0e477690b699a38eade375acf3b3004dcd"},
    licence="CC BY 4.0 (Moro, Laureano, Cortez 2011)",
)

IMDB = DatasetOrigin(
    name="imdb",
    title="IMDB Large Movie Review Dataset: 50,000 labelled film reviews, 2 classes",
    folder="imdb",
    downloads=(
        Download(
            "aclImdb_v1.tar.gz",
            ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
            "md5:7c2ac02c03563afcf9b574c7e56c153a",
        ),
    ),
    unpacked_files={"imdb_train.parquet": "rows:25000", "imdb_test.parquet": "rows:25000"},
    compact_files={
        "imdb_train.parquet": "sha256:5909ed5920fa6f3d21aab3eccc59005060f37bca996060f79de81f9620efc9dc",
        "imdb_test.parquet": "sha256:f028a72a572643c09410f7ce7ed7c80ba18c2a8e5c768daa1760f62a6c0e34a6",
    },
    licence="free for research with a citation (Maas et al. 2011); the reviews are their authors'",
)

KDD99 = DatasetOrigin(
    name="kdd99",
    title="KDD Cup 1999: 494,021 network connections (the 10 % part) and 311,029 to test on",
    folder="kdd99",
    downloads=(
        Download(
            "kddcup.data_10_percent.gz",
            (
                f"{_KDD}/kddcup.data_10_percent.gz",
                f"{_UCI}/ml/machine-learning-databases/kddcup99-mld/kddcup.data_10_percent.gz",
            ),
            "sha256:8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
        ),
        Download(
            "corrected.gz", (f"{_KDD}/corrected.gz", f"{_UCI}/ml/machine-learning-databases/kddcup99-mld/corrected.gz")
        ),
    ),
    unpacked_files=_KDD_SUMS,
    compact_files={
        "kddcup.data_10_percent.gz": "sha256:8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
        "corrected.gz": "sha256:74f0daef49b242badc09f2adbd457dea6a45b4f77177efbd11216d333651044b",
    },
    licence="CC BY 4.0 as listed by the UCI Machine Learning Repository",
)

ORIGINS: Mapping[str, DatasetOrigin] = MappingProxyType({each.name: each for each in (CIFAR10, BANK, IMDB, KDD99)})


def find_origin(name: str) -> DatasetOrigin:
    """The origin of a known data set; raises NotFound for any other name."""
    if name not in ORIGINS:
        fix = f"use one of {', '.join(ORIGINS)}; any other file or database is read in place"
        raise NotFound(f"{name!r} is not a data set that Fairlead can download", field="name", value=name, fix=fix)
    return ORIGINS[name]
