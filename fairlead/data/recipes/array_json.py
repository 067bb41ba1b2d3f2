"""Converts learned state to JSON and back: small arrays as lists, large ones as base64 bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import numpy as np

_READABLE = 512  # longest array that is written as a list
_MARK = "$array"


def arrays_to_json(value: Any) -> Any:
    """The value with every array converted to JSON."""
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and len(value) <= _READABLE:
            return value.tolist()
        plain = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        data = base64.b64encode(plain.tobytes()).decode()
        return {_MARK: {"dtype": plain.dtype.str, "shape": list(plain.shape), "data": data}}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): arrays_to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [arrays_to_json(each) for each in value]
    return value


def arrays_from_json(value: Any) -> Any:
    """The value with its arrays restored. Nothing in it is executed."""
    if isinstance(value, dict):
        if set(value) == {_MARK}:
            inner = value[_MARK]
            data = np.frombuffer(base64.b64decode(inner["data"], validate=True), np.dtype(inner["dtype"]))
            return data.reshape(inner["shape"])
        return {key: arrays_from_json(each) for key, each in value.items()}
    return [arrays_from_json(each) for each in value] if isinstance(value, list) else value


def canonical_json(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN or infinity. Equal content gives equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: Any) -> str:
    """SHA-256 of the canonical JSON: the same on every machine."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
