"""Puts a call of the recorder at the start of each function of a module: far cheaper than to trace every call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

IMPORT = "from fairlead._recorder import hit as _hit"


def instrumented(source: str, first: int) -> tuple[str, list[str]]:
    """The module with its functions numbered from ``first``, and their qualified names in that order."""
    tree = ast.parse(source)
    lines = source.splitlines()
    names, places = [], [(_behind_future(tree), 0, f"{IMPORT}\n")]
    for name, function in _functions(tree, ""):
        body = [each for each in function.body if not _is_docstring(each)]
        if not body:
            continue
        start = body[0]
        decorators = getattr(start, "decorator_list", [])
        line, column = min((each.lineno, each.col_offset) for each in (start, *decorators))
        column -= bool(decorators)  # the sign before it
        call = f"_hit({first + len(names)})"
        names.append(name)
        encoded = lines[line - 1].encode()
        compound = isinstance(start, _COMPOUND)
        places.append((line, column, f"{call}\n{encoded[:column].decode()}" if compound else f"{call}; "))
    for line, column, text in sorted(places, reverse=True):
        if line > len(lines):
            lines.append(text.rstrip("\n"))
            continue
        encoded = lines[line - 1].encode()
        lines[line - 1] = f"{encoded[:column].decode()}{text}{encoded[column:].decode()}"
    return "\n".join(lines) + "\n", names


_COMPOUND = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
)  # fmt: skip


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each function below a node with its name as `__qualname__` gives it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _behind_future(tree: ast.Module) -> int:
    """The line before which an import may stand: behind the docstring and imports of the future."""
    for node in tree.body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not future and not _is_docstring(node):
            decorators = getattr(node, "decorator_list", [])
            return min(each.lineno for each in (node, *decorators))
    return (tree.body[-1].end_lineno or 0) + 1 if tree.body else 1
