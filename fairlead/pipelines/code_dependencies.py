"""Finds what a function's result depends on in its source.

Itself, the names it uses in its file, and the files it imports.

The source is parsed, never run; comments and layout do not count. Files read by other means than imports are not seen:
use ``cache=False`` for stages that depend on them.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Sources:
    """The Python files of one folder, each parsed once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trees: dict[Path, ast.Module | None] = {}
        self._file_digests: dict[Path, str] = {}

    def digest(self, file: str, function: str) -> str | None:
        """``sha256:`` of everything that the function depends on; None if its file cannot be parsed."""
        path = (self._folder / file).resolve()
        tree = self._tree(path)
        definition = None if tree is None else find(tree, function)
        if tree is None or definition is None:
            return None
        parts = self._parts(tree, definition)
        files = self._files(path, [each for each in ast.walk(tree) if isinstance(each, _IMPORTS)])
        imported = sorted(self._file_digest(each) for each in files)
        text = "\0".join([function, *parts, *imported])
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def texts(self, file: str) -> list[str]:
        """The texts of the file and of everything in the folder that it imports."""
        path = (self._folder / file).resolve()
        tree = self._tree(path)
        if tree is None:
            return []
        files = self._files(path, [each for each in ast.walk(tree) if isinstance(each, _IMPORTS)])
        return [each.read_text(encoding="utf-8", errors="replace") for each in [path, *sorted(files)]]

    def parameters(self, file: str, function: str) -> tuple[list[str], list[str]] | None:
        """The parameters of a function and the required ones; None if it takes ``**kwargs`` or cannot be found."""
        tree = self._tree((self._folder / file).resolve())
        found = None if tree is None else find(tree, function)
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) or found.args.kwarg is not None:
            return None
        places = [each.arg for each in [*found.args.posonlyargs, *found.args.args]]
        needed = places[: len(places) - len(found.args.defaults)]
        only = zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
        needed += [each.arg for each, default in only if default is None]
        return places + [each.arg for each in found.args.kwonlyargs], needed

    def _tree(self, path: Path) -> ast.Module | None:
        if path not in self._trees:
            try:
                self._trees[path] = ast.parse(path.read_bytes(), path.name)
            except (OSError, SyntaxError, ValueError):  # the worker reports the error
                self._trees[path] = None
        return self._trees[path]

    def _parts(self, tree: ast.Module, start: _Definition) -> list[str]:
        """The statements of this file on which the function depends, in file order.

        That is what it names, what those name in turn, and statements with effects. A name may be assigned several
        times (``C["lr"] = 1``, ``T = T * 2``): all assignments count, in order.
        """
        named: dict[str, list[ast.stmt]] = {}
        for each in tree.body:
            for name in _defined_names(each):
                named.setdefault(name, []).append(each)
        bare = _without_stage(start, named.keys())
        plain = {name: _without_steps(each, named.keys()) for name, each in named.items()}
        acting = [each for each in tree.body if each is not start and _has_effects(each, plain)]
        reached = {id(each) for each in acting}
        pending: list[ast.stmt] = [each for each in named[start.name] if each is not start]
        pending += [bare, *(each for act in acting for name in _mentioned_names(act) for each in plain.get(name, []))]
        while pending:
            one = pending.pop()
            if id(one) not in reached:
                reached.add(id(one))
                pending += [each for name in _mentioned_names(one) for each in named.get(name, []) if each is not start]
        return [ast.dump(bare if each is start else each) for each in tree.body if id(each) in reached or each is start]

    def _files(self, path: Path, imports: Sequence[ast.AST]) -> set[Path]:
        """All files of the folder that these imports reach, directly or not."""
        found: set[Path] = set()
        pending = [(path, imports)]
        while pending:
            origin, statements = pending.pop()
            for statement in statements:
                for target in self._targets(origin, statement):
                    if target not in found and target != path:
                        found.add(target)
                        tree = self._tree(target)
                        further = [] if tree is None else [n for n in ast.walk(tree) if isinstance(n, _IMPORTS)]
                        pending.append((target, further))
        return found

    def _targets(self, origin: Path, statement: ast.AST) -> Iterator[Path]:
        if isinstance(statement, ast.Import):
            names, roots, level = [alias.name for alias in statement.names], [self._folder, origin.parent], 0
        elif isinstance(statement, ast.ImportFrom):
            base, level = statement.module or "", statement.level
            names = [base, *(f"{base}.{alias.name}".strip(".") for alias in statement.names)]
            near = origin.parents[min(max(level, 1), len(origin.parents)) - 1]
            roots = [near] if level else [self._folder, origin.parent]
        else:
            return
        for root in roots:
            for name in names:
                yield from filter(self._is_ours, _imported_files(root, name, within=level > 0))

    def _is_ours(self, file: Path) -> bool:
        return file.is_file() and file.is_relative_to(self._folder.resolve())

    def _file_digest(self, path: Path) -> str:
        if path not in self._file_digests:
            tree = self._tree(path)
            text = ast.dump(tree) if tree is not None else path.read_bytes().hex()
            name = path.relative_to(self._folder.resolve())
            self._file_digests[path] = f"{name}:{hashlib.sha256(text.encode()).hexdigest()}"
        return self._file_digests[path]


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def find(tree: ast.Module, name: str) -> _Definition | None:
    """The top-level definition of this name."""
    found = [each for each in tree.body if isinstance(each, _DEFINITIONS) and each.name == name]
    return found[-1] if found else None


def _without_stage(start: _Definition, own: Collection[str]) -> _Definition:
    """The function without our ``@stage`` decorator, which says what it runs on, not what it returns.

    A ``stage`` that the file itself defines is not ours.
    """
    if "stage" in own:
        return start
    bare = copy.copy(start)
    bare.decorator_list = [each for each in start.decorator_list if not _is_called(each, "stage")]
    return bare


def _is_called(decorator: ast.expr, name: str) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return name in (getattr(called, "id", None), getattr(called, "attr", None))


def _imported_files(root: Path, name: str, *, within: bool) -> Iterator[Path]:
    """The files that an import of this name runs: its own and the ``__init__`` of all packages on the way.

    ``within``: the root folder itself is a package, as in imports from ``.``.
    """
    parts = name.split(".") if name else []
    for deep in range(0 if within else 1, len(parts) + 1):
        yield root.joinpath(*parts[:deep], "__init__.py").resolve()
    if parts:
        yield root.joinpath(*parts).with_suffix(".py").resolve()


def _without_steps(statements: Sequence[ast.stmt], own: Collection[str]) -> list[ast.stmt]:
    """These statements without stages and pipelines, which module-level code may mention freely."""
    return [each for each in statements if not _is_step(each, own)]


def _is_step(statement: ast.stmt, own: Collection[str]) -> bool:
    decorators = statement.decorator_list if isinstance(statement, _DEFINITIONS) else []
    return any(_makes_step(each, own) for each in decorators)


def _makes_step(called: ast.expr, own: Collection[str]) -> bool:
    return any(_is_called(called, name) for name in ("stage", "pipeline") if name not in own)


def _has_effects(statement: ast.stmt, plain: Mapping[str, Sequence[ast.stmt]]) -> bool:
    """True if the statement does something at import time on which anything in the file may depend.

    ``plain`` maps the file's names to their statements. A decorator may register its function; a call may change any
    object of this file.
    """
    if isinstance(statement, _DEFINITIONS):
        return bool(statement.decorator_list) and statement in plain.get(statement.name, [])
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return any(_calls_own_code(node, plain) for node in ast.walk(statement) if isinstance(node, ast.Call))
    if isinstance(statement, _IMPORTS):
        return False
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False  # a docstring
    return not (isinstance(statement, ast.If) and "__name__" in _mentioned_names(statement))


def _calls_own_code(call: ast.Call, plain: Mapping[str, Sequence[ast.stmt]]) -> bool:
    """True if it calls something of this file, or passes on a definition that may be called."""
    if _makes_step(call, plain):
        return False
    called: ast.AST = call.func
    while isinstance(called, ast.Attribute | ast.Subscript | ast.Call):
        called = called.func if isinstance(called, ast.Call) else called.value
    if isinstance(called, ast.Name) and plain.get(called.id):
        return True
    named = (node.id for node in ast.walk(call) if isinstance(node, ast.Name))
    return any(isinstance(each, _DEFINITIONS) for name in named for each in plain.get(name, []))


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, _DEFINITIONS):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _mentioned_names(statement: ast.stmt) -> set[str]:
    """All names in the statement."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
