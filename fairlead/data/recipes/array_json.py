"""What was learned as JSON and back: small arrays as lists that one can read, large ones as bytes in base 64."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import numpy as np

_READABLE = 512  # numbers of an array that is written as a list
_MARK = "$array"


def arrays_to_json(value: Any) -> Any:
    """The value with every array as JSON."""
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
    """The value with its arrays again. Nothing in it is ever executed."""
    if isinstance(value, dict):
        if set(value) == {_MARK}:
            inner = value[_MARK]
            data = np.frombuffer(base64.b64decode(inner["data"], validate=True), np.dtype(inner["dtype"]))
            return data.reshape(inner["shape"])
        return {key: arrays_from_json(each) for key, each in value.items()}
    return [arrays_from_json(each) for each in value] if isinstance(value, list) else value


def canonical_json(value: Any) -> str:
    """One text for one content: sorted keys, no spaces, and no number that JSON does not know."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_hash(value: Any) -> str:
    """The name of a content: the same on every machine."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
