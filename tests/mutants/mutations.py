"""The changes that one module allows: an operator, order, comparison, boolean, constant, call or statement each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

Change = Callable[[Any], ast.AST]

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
TRANSPARENT = ("sorted", "max", "min", "abs", "round", "reversed")  # calls that their first argument can replace
# How a value is built or printed, or a thread is named: no behaviour that a test should see.
FORM = ("frozen", "slots", "kw_only", "eq", "strict", "name", "daemon", "gc", "description", "help")
SILENT = ("log", "_log", "logger", "logging", "warnings", "print")  # statements that only tell


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: where it is, what the text was and is, and the whole module after it."""

    module: str
    function: str
    line: int
    before: str
    after: str
    text: str

    @property
    def change(self) -> str:
        return f"{self.before} => {self.after}"

    @property
    def key(self) -> str:
        return f"{self.module}:{self.function}:{self.change}"


@dataclass(frozen=True, slots=True)
class Site:
    """A node that can be changed in one way, the kind of that change, and the function in which it stands."""

    module: str
    function: str
    kind: str
    node: ast.expr | ast.stmt
    change: Change


def sites(module: str, source: str) -> list[Site]:
    """Every place of a module that can be changed, in the order of its text."""
    return list(_Walk(module).of(ast.parse(source)))


def mutant_of(chosen: Site, among: list[Site], source: str) -> Mutant | None:
    """The mutant of one site; None if nothing would change. The like of it in one function are told apart by number."""
    mutant = _made(chosen, source)
    if mutant is None:
        return None
    alike = [_texts(site) for site in among[: among.index(chosen) + 1] if site.function == chosen.function]
    number = alike.count(_texts(chosen))
    return mutant if number == 1 else replace(mutant, after=f"{mutant.after} (#{number})")


def _texts(site: Site) -> tuple[str, str]:
    changed = ast.unparse(ast.fix_missing_locations(site.change(copy.deepcopy(site.node))))
    return " ".join(ast.unparse(site.node).split()), " ".join(changed.split())


def _made(site: Site, source: str) -> Mutant | None:
    node = site.node
    changed = ast.unparse(ast.fix_missing_locations(site.change(copy.deepcopy(node))))
    before, after = _texts(site)
    if before == after or node.end_lineno is None or node.end_col_offset is None:
        return None
    lines = source.splitlines(keepends=True)
    start = _offset(lines, node.lineno, node.col_offset)
    end = _offset(lines, node.end_lineno, node.end_col_offset)
    if isinstance(node, ast.stmt):
        changed = changed.replace("\n", "\n" + " " * node.col_offset)
    elif not isinstance(node, ast.Constant | ast.Name | ast.Attribute):
        changed = f"({changed})"
    text = (source.encode()[:start] + changed.encode() + source.encode()[end:]).decode()
    try:
        ast.parse(text)
    except SyntaxError:  # inside an f-string, whose parts have no places of their own
        return None
    return Mutant(site.module, site.function, node.lineno, before, after, text)


def _offset(lines: list[str], line: int, column: int) -> int:
    return sum(len(each.encode()) for each in lines[: line - 1]) + column


class _Walk:
    """Walks a module and finds what can change."""

    def __init__(self, module: str) -> None:
        self.module = module

    def of(self, tree: ast.Module) -> Iterator[Site]:
        for statement in tree.body:
            yield from self._statement(statement, ())

    def _statement(self, node: ast.stmt, where: tuple[str, ...]) -> Iterator[Site]:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal) or _only_tells(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from self._definition(node, where)
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return
        function = _name(where)
        for kind, change in _statement_changes(node, bool(where)):
            yield Site(self.module, function, kind, node, change)
        for name, value in ast.iter_fields(node):
            if name == "annotation" or (isinstance(node, ast.Raise) and name == "exc"):
                continue
            yield from self._values(value, where)

    def _definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, where: tuple[str, ...]
    ) -> Iterator[Site]:
        inner = (*where, node.name)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                yield from self._values(default, inner)
            inner = (*inner, "<locals>")
        for statement in node.body:
            yield from self._statement(statement, inner)

    def _values(self, value: object, where: tuple[str, ...]) -> Iterator[Site]:
        if isinstance(value, list):
            for each in value:
                yield from self._values(each, where)
        elif isinstance(value, ast.stmt):
            yield from self._statement(value, where)
        elif isinstance(value, ast.expr):
            yield from self._expression(value, where)
        elif isinstance(value, ast.ExceptHandler):
            yield from self._values(value.body, where)
        elif isinstance(value, ast.AST) and not isinstance(value, ast.arguments):
            for _, inner in ast.iter_fields(value):
                yield from self._values(inner, where)

    def _expression(self, node: ast.expr, where: tuple[str, ...]) -> Iterator[Site]:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Subscript) and _is_a_type(node)):
            return
        if isinstance(node, ast.Call) and _is_a_cast(node):
            return
        for kind, change in _expression_changes(node):
            yield Site(self.module, _name(where), kind, node, change)
        for name, value in ast.iter_fields(node):
            if isinstance(node, ast.Call) and name == "keywords":
                value = [keyword.value for keyword in node.keywords if keyword.arg not in FORM]
            yield from self._values(_parts(value) if name in _unordered(node) else value, where)


def _name(where: tuple[str, ...]) -> str:
    """As Python calls it: `Class.method`, `function.<locals>.inner`; `<module>` outside of all."""
    return ".".join(where[:-1] if where and where[-1] == "<locals>" else where) or "<module>"


def _only_tells(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True  # a docstring
    called = node.value.func if isinstance(node.value, ast.Call) else None
    while isinstance(called, ast.Attribute):
        called = called.value
    return isinstance(called, ast.Name) and called.id in SILENT


def _is_a_type(node: ast.Subscript) -> bool:
    """`dict[str, int]` outside of annotations."""
    return isinstance(node.value, ast.Name) and (
        node.value.id[0].isupper() or node.value.id in ("dict", "set", "tuple", "type")
    )


def _is_a_cast(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in ("cast", "TypeVar", "NewType")


def _unordered(node: ast.expr) -> tuple[str, ...]:
    """Fields in which the order of a tuple means nothing: it is only asked what is among it."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return ("comparators",)
    asked = isinstance(node, ast.Call) and _called(node) in (
        "isinstance",
        "issubclass",
        "startswith",
        "endswith",
        "suppress",
    )
    return ("args",) if asked else ()


def _parts(value: object) -> object:
    """The members of tuples instead of the tuples."""
    if not isinstance(value, list):
        return value
    return [part for each in value for part in (each.elts if isinstance(each, ast.Tuple) else (each,))]


def _statement_changes(node: ast.stmt, inside: bool) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.AugAssign):
        yield "operator", _other_operator
    if isinstance(node, ast.Break):
        yield "statement", lambda _: ast.Continue()
    if isinstance(node, ast.Continue):
        yield "statement", lambda _: ast.Break()
    removable = isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Delete) or (
        isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    )
    if removable and inside and not isinstance(getattr(node, "value", None), ast.Yield | ast.YieldFrom):
        yield "statement", lambda _: ast.Pass()


def _expression_changes(node: ast.expr) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Compare(ops=[single]):
            for other in COMPARISONS.get(type(single), ()):
                yield "comparison", partial(_compared, other)
        case ast.BoolOp():
            yield (
                "boolean",
                lambda node: ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values),
            )
            for index in range(len(node.values)):
                yield "boolean", partial(_without, index)
        case ast.BinOp() if type(node.op) in OPERATORS and not _is_text(node):
            yield "operator", _other_operator
        case ast.UnaryOp(op=ast.Not()):
            yield "boolean", lambda node: node.operand
        case ast.UnaryOp(op=ast.USub()):
            yield "operator", lambda node: node.operand
        case ast.IfExp():
            yield "boolean", lambda node: ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Constant():
            yield from (("constant", change) for change in _constant_changes(node.value))
        case ast.Call():
            yield from _call_changes(node)
        case ast.Tuple(elts=[_, _], ctx=ast.Load()):
            yield "order", lambda node: ast.Tuple(node.elts[::-1], ast.Load())


def _compared(other: type[ast.cmpop], node: Any) -> ast.AST:
    return ast.Compare(node.left, [other()], node.comparators)


def _without(index: int, node: Any) -> ast.AST:
    left = [value for turn, value in enumerate(node.values) if turn != index]
    return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _other_operator(node: Any) -> Any:
    node.op = OPERATORS.get(type(node.op), ast.Add)()
    return node


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(getattr(side, "value", None), str | bytes) or isinstance(side, ast.JoinedStr)
        for side in (node.left, node.right)
    )


def _constant_changes(value: object) -> Iterator[Change]:
    """Another number or truth. Not another text: most are messages, and a name that nobody knows fails at once."""
    if isinstance(value, bool):
        yield lambda _: ast.Constant(not value)
    elif isinstance(value, int):
        yield lambda _: ast.Constant(value + 1 if value < 4 else value * 2)
        if value > 1:
            yield lambda _: ast.Constant(value // 2)
    elif isinstance(value, float):
        yield lambda _: ast.Constant(value * 2 or 1.0)
        yield lambda _: ast.Constant(value / 2)


def _call_changes(node: ast.Call) -> Iterator[tuple[str, Change]]:
    name = _called(node)
    if name in CALLS:
        yield "call", _renamed
    first = node.args[0] if node.args else None
    if (
        name in TRANSPARENT
        and isinstance(node.func, ast.Name)
        and first
        and not isinstance(first, ast.Starred | ast.GeneratorExp)
    ):
        yield "call", lambda node: node.args[0]
    if name == "sorted":
        yield "order", lambda node: ast.Call(ast.Name("list"), [ast.Call(ast.Name("reversed"), [node], [])], [])
    if (
        len(node.args) == 2
        and all(isinstance(arg, ast.Name | ast.Attribute) for arg in node.args)
        and name not in ("isinstance", "issubclass", "suppress", "max", "min")
    ):
        yield "order", lambda node: ast.Call(node.func, node.args[::-1], node.keywords)
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in FORM:
            yield "call", partial(_without_keyword, index)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _renamed(node: Any) -> ast.AST:
    other = CALLS[_called(node)]
    function = ast.Name(other) if isinstance(node.func, ast.Name) else ast.Attribute(node.func.value, other, ast.Load())
    return ast.Call(function, node.args, node.keywords)


def _without_keyword(index: int, node: Any) -> ast.AST:
    return ast.Call(node.func, node.args, node.keywords[:index] + node.keywords[index + 1 :])


def modules(root: Path, room: str) -> list[str]:
    """The modules of a room whose code can still change: migrations of the past cannot."""
    found = (path.relative_to(root).as_posix() for path in sorted((root / "fairlead" / room).rglob("*.py")))
    return [path for path in found if "/migrations/" not in path]
