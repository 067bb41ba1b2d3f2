"""The step that tokenises text with a trained or given vocabulary (Hugging Face tokenizers) and pads it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from fairlead.data.recipes.batch_columns import Array, Frame
from fairlead.data.recipes.statistics import Reservoir
from fairlead.data.recipes.step import Learner, State, Step
from fairlead.errors import InvalidSpec

PAD, UNKNOWN = "[PAD]", "[UNK]"
_LONGEST = 20_000  # characters of a text used for training


class Tokenise(Step):
    """Turn text into token ids, with their count in NAME_length.

    ``vocabulary`` is a size to train, a list of tokens, or a tokenizer.json. Texts are cut and padded to ``length``;
    without it, ``coverage`` of the texts fit uncut. With ``pad: false`` a step ``pad`` must follow. A vocabulary for
    ``wordpiece`` must be given: the library numbers a trained one differently every time.
    """

    name: ClassVar[str] = "tokenise"
    columns: tuple[str, ...] = ("text",)
    model: Literal["bpe", "words", "wordpiece"] = "bpe"
    vocabulary: int | tuple[str, ...] | str = 16_000
    lower: bool = True
    length: int | None = Field(default=None, ge=1, le=65_536)
    coverage: float = Field(default=0.95, gt=0, le=1)
    pad: bool = True
    texts: int = Field(default=20_000, ge=1, le=1_000_000)  # sampled to train the vocabulary
    seed: int = 0

    @property
    def changes_columns(self) -> bool:
        return True

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        return _VocabularyLearner(columns, self)

    def apply(self, state: State, frame: Frame) -> None:
        tokenizer, length = _cached_tokenizer(state["tokenizer"]), int(state["length"])
        for _, name in self.present_columns(state, frame):
            texts = [text or "" for text in frame.texts(name).to_pylist()]
            encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            if not self.pad:
                frame.columns[name] = pa.array([one.ids for one in encoded], pa.list_(pa.int32()))
                continue
            lengths = np.array([min(len(one), length) for one in encoded], np.int32)
            ids = np.zeros((len(encoded), length), np.int32)
            for row, one in enumerate(encoded):
                ids[row, : lengths[row]] = one.ids[:length]
            frame.columns[name], frame.columns[f"{name}_length"] = ids, lengths


class _VocabularyLearner:
    """Trains on a uniform sample of the texts of all columns, so that memory stays bounded."""

    def __init__(self, columns: list[str], step: Tokenise) -> None:
        self._columns, self._step = columns, step
        self._samples = [Reservoir(step.texts, step.seed) for _ in columns]

    def summarise(self, frame: Frame) -> list[tuple[Array, Array, Array]]:
        found = []
        for name, sample in zip(self._columns, self._samples, strict=True):
            chosen, keys = sample.choose(frame.row_numbers)
            texts = frame.texts(name).take(pa.array(chosen)).to_pylist()
            found.append(
                (frame.row_numbers[chosen], keys, np.array([(text or "")[:_LONGEST] for text in texts], object))
            )
        return found

    def add(self, seen: list[tuple[Array, Array, Array]]) -> None:
        for sample, (places, keys, texts) in zip(self._samples, seen, strict=True):
            sample.add(places, keys, texts)

    def state(self) -> State:
        step = self._step
        texts = [str(text) for sample in self._samples for text in sample.sample()[1].ravel()]
        tokenizer = load_tokenizer(step) if not isinstance(step.vocabulary, int) else train_tokenizer(step, texts)
        length = step.length
        if length is None:
            counts = [len(one) for one in tokenizer.encode_batch_fast(texts[:5_000], add_special_tokens=False)] or [1]
            length = max(8, -(-int(np.quantile(counts, step.coverage)) // 8) * 8)
        written = json.loads(tokenizer.to_str())
        return {"columns": self._columns, "tokenizer": written, "length": length,
                "vocabulary": tokenizer.get_vocab_size()}  # fmt: skip


def train_tokenizer(step: Tokenise, texts: list[str]) -> Any:
    """Train a tokenizer with a vocabulary of the requested size."""
    from tokenizers import trainers

    if step.model == "wordpiece":
        raise InvalidSpec("cannot be trained reproducibly", field="tokenise.model", value=step.model,
                          fix="train bpe, or give a vocabulary")  # fmt: skip
    tokenizer = _untrained_tokenizer(step, None)
    kinds = {"bpe": trainers.BpeTrainer, "words": trainers.WordLevelTrainer}
    trainer = kinds[step.model](vocab_size=step.vocabulary, special_tokens=[PAD, UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def load_tokenizer(step: Tokenise) -> Any:
    """Load a tokenizer from a tokenizer.json or a list of tokens."""
    from tokenizers import Tokenizer

    if isinstance(step.vocabulary, str):
        try:
            written = Path(step.vocabulary).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            fix = "name a tokenizer.json, give a list of tokens, or a size to train"
            raise InvalidSpec(f"cannot be read: {error}", field="tokenise.vocabulary", fix=fix) from None
        try:
            tokenizer = Tokenizer.from_str(written)
        except Exception as error:  # noqa: BLE001  the library raises plain Exception
            raise InvalidSpec(f"is not a tokenizer: {error}", field="tokenise.vocabulary", value=step.vocabulary,
                              fix="save it with Tokenizer.save of the tokenizers library") from None  # fmt: skip
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer
    assert not isinstance(step.vocabulary, int)
    if step.model == "bpe":
        raise InvalidSpec("bpe also needs merges", field="tokenise.vocabulary", fix="name its tokenizer.json")
    return _untrained_tokenizer(step, dict.fromkeys([PAD, UNKNOWN, *step.vocabulary]))


def _untrained_tokenizer(step: Tokenise, words: dict[str, None] | None) -> Any:
    """An untrained tokenizer, empty or with these words; [PAD] is 0 and [UNK] is 1."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {"vocab": {word: place for place, word in enumerate(words)}} if words else {}
    kinds = {"wordpiece": models.WordPiece, "bpe": models.BPE, "words": models.WordLevel}
    tokenizer = Tokenizer(kinds[step.model](unk_token=UNKNOWN, **vocabulary))
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if step.lower else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if step.model == "wordpiece":
        tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _cached_tokenizer(written: dict[str, Any]) -> Any:
    return _parse_tokenizer(json.dumps(written))


@lru_cache(maxsize=16)
def _parse_tokenizer(written: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(written)
