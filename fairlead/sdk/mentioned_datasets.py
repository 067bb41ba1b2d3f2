"""Finds the data sets that a program names, by parsing its text without running it."""

from __future__ import annotations

import ast
import re

from fairlead.spec_errors import DATA_PATTERN

_FIELDS = frozenset({"data", "eval_data"})


def mentioned_datasets(text: str) -> list[str]:
    """Names in ``Training(data="bank")`` and ``fairlead.data.dataset("bank")``, each once, in order."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # the job will report it
        return []
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "fairlead.data"
        for alias in node.names if alias.name == "dataset"
    }  # fmt: skip
    found = [each for node in ast.walk(tree) if isinstance(node, ast.Call) for each in _named(node, imported)]
    return [name for name in dict.fromkeys(found) if re.match(DATA_PATTERN, name)]


def _named(call: ast.Call, imported: set[str]) -> list[str]:
    called = ast.unparse(call.func)
    if called == "Training" or called.endswith(".Training"):
        return [word for each in call.keywords if each.arg in _FIELDS for word in _text(each.value)]
    if called in imported or called.endswith("data.dataset"):
        whole = [*call.args, *(each.value for each in call.keywords if each.arg in ("name", "version"))]
        words = [word for each in whole[:2] for word in _text(each)]
        return ["@".join(words)] if words else []
    return []


def _text(value: ast.expr) -> list[str]:
    return [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []
