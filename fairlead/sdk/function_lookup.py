"""Checks that the function named by ``run`` is in the folder, by parsing its file without running it."""

from __future__ import annotations

import ast
import posixpath
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path

from fairlead.errors import InvalidSpec

MAX_BYTES = 2_000_000
"""Larger files are not checked."""
NAMES_SHOWN = 6

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_DYNAMIC = ("globals", "locals", "vars", "exec")


def check(run: str, folder: Path, files: Collection[str], *, field: str = "run", newest: bool = True) -> None:
    """Refuse ``run`` if its file does not define the name, as far as parsing can tell.

    ``files`` are the uploaded names. ``newest`` is False for a virtual environment, whose Python may accept syntax
    that this one does not: syntax errors are then ignored.
    """
    place, _, name = run.rpartition(":")
    path = _source(place, files)
    if path is None or (folder / path).stat().st_size > MAX_BYTES:
        return
    try:
        tree = _parsed((folder / path).read_bytes(), path)
    except (SyntaxError, ValueError) as error:
        if newest:
            raise _unreadable(run, path, error, field) from None
        return
    except (RecursionError, MemoryError, OSError):
        return
    if name not in (bound := set(_bound_names(tree))) and "*" not in bound and not _may_bind_dynamically(tree, name):
        raise InvalidSpec(f"{path} has no function {name}", field=field, value=run, fix=_fix(tree, place, path))


def _source(place: str, files: Collection[str]) -> str | None:
    """The uploaded file that should define the function; None if it is not in the upload."""
    inside = place.replace(".", "/")
    wanted = [f"{inside}/__init__.py", f"{inside}.py"]  # in the order of an import
    if place.endswith(".py"):
        wanted = [posixpath.normpath(place)]
    return next((path for path in wanted if path in files), None)


def _parsed(source: bytes, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes are reported by the worker
        return ast.parse(source, filename=path)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Names that the module binds at its top level; ``*`` for a star import."""
    for node in _top_level(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def _top_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes at module level, also inside if, try, with and loops, but not inside functions and classes."""
    for child in ast.iter_child_nodes(tree):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _top_level(child)


def _may_bind_dynamically(tree: ast.Module, name: str) -> bool:
    """True if the module may bind the name in a way that parsing cannot see."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) and name in node.names:
            return True
        if isinstance(node, ast.Name) and node.id in _DYNAMIC:
            return True
        if isinstance(node, ast.Attribute) and node.attr == "modules" and ast.unparse(node.value) == "sys":
            return True
    return "__getattr__" in _bound_names(tree)


def _fix(tree: ast.Module, place: str, path: str) -> str:
    found = [each.name for each in _top_level(tree) if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
    names = list(dict.fromkeys(found))
    if not names:
        return f"write a function in {path} that returns a fairlead.Training, or run it as a command: -- python {path}"
    if len(names) == 1:
        return f"did you mean {place}:{names[0]}?"
    more = ", ..." if len(names) > NAMES_SHOWN else ""
    return f"use one of: {', '.join(names[:NAMES_SHOWN])}{more}"


def _unreadable(run: str, path: str, error: SyntaxError | ValueError, field: str) -> InvalidSpec:
    if isinstance(error, SyntaxError):
        problem = f"{path}, line {error.lineno}: {error.msg}" if error.lineno else f"{path}: {error.msg}"
    else:
        problem = f"{path}: {error}"
    fix = "correct the file, or name a virtual environment (venv) with a matching Python"
    return InvalidSpec(f"cannot be read as Python: {problem}", field=field, value=run, fix=fix)
