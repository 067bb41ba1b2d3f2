"""Whether the function that ``run`` names is in the folder: found out by reading its file, never by running it."""

from __future__ import annotations

import ast
import posixpath
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path

from fairlead.errors import InvalidSpec

LARGEST_BYTES = 2_000_000
"""A larger file is a table, not a program: its worker reads it anyway."""
LISTED = 6

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_DYNAMIC = ("globals", "locals", "vars", "exec")


def check(run: str, folder: Path, files: Collection[str], *, field: str = "run", newest: bool = True) -> None:
    """Refuse a name that the file of ``run`` does not have, as far as reading can tell.

    ``files`` are the names that go along. Without ``newest``, for a Python that is not this one, a file that cannot be
    read as Python is let pass: its own Python may understand it.
    """
    place, _, name = run.rpartition(":")
    path = _source(place, files)
    if path is None or (folder / path).stat().st_size > LARGEST_BYTES:
        return
    try:
        tree = _parsed((folder / path).read_bytes(), path)
    except (SyntaxError, ValueError) as error:
        if newest:
            raise _unreadable(run, path, error, field) from None
        return
    except (RecursionError, MemoryError, OSError):
        return
    if name not in (bound := set(_bound(tree))) and "*" not in bound and not _dynamic(tree, name):
        raise InvalidSpec(f"there is no function {name} in {path}", field=field, value=run, fix=_fix(tree, place, path))


def _source(place: str, files: Collection[str]) -> str | None:
    """The file among those that go along in which the function is looked for; None: it comes from elsewhere."""
    inside = place.replace(".", "/")
    wanted = [f"{inside}/__init__.py", f"{inside}.py"]  # as an import would choose
    if place.endswith(".py"):
        wanted = [posixpath.normpath(place)]
    return next((path for path in wanted if path in files), None)


def _parsed(source: bytes, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of doubtful escapes: its worker says so
        return ast.parse(source, filename=path)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Names that running the module binds; ``*`` for what a star import may bring."""
    for node in _at_top(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def _at_top(tree: ast.AST) -> Iterator[ast.AST]:
    """What the module itself runs, also within if, try, with and loops; not what is inside functions and classes."""
    for child in ast.iter_child_nodes(tree):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _at_top(child)


def _dynamic(tree: ast.Module, name: str) -> bool:
    """Whether the name may come about in a way that only running shows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) and name in node.names:
            return True
        if isinstance(node, ast.Name) and node.id in _DYNAMIC:
            return True
        if isinstance(node, ast.Attribute) and node.attr == "modules" and ast.unparse(node.value) == "sys":
            return True
    return "__getattr__" in _bound(tree)


def _fix(tree: ast.Module, place: str, path: str) -> str:
    found = [each.name for each in _at_top(tree) if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
    there = list(dict.fromkeys(found))
    if not there:
        return f"write a function in {path} that returns a fairlead.Training, or run it as a command: -- python {path}"
    if len(there) == 1:
        return f"did you mean {place}:{there[0]}?"
    more = ", ..." if len(there) > LISTED else ""
    return f"name one that is there: {', '.join(there[:LISTED])}{more}"


def _unreadable(run: str, path: str, error: SyntaxError | ValueError, field: str) -> InvalidSpec:
    if isinstance(error, SyntaxError):
        told = f"{path}, line {error.lineno}: {error.msg}" if error.lineno else f"{path}: {error.msg}"
    else:
        told = f"{path}: {error}"
    fix = "correct the file, or name the virtual environment (venv) whose Python understands it"
    return InvalidSpec(f"cannot be read as Python: {told}", field=field, value=run, fix=fix)
