"""Declares pipelines in Python: functions marked with ``@stage``, wired by calling them with each other's results.

Outside a pipeline a stage is a plain function: call it, test it, debug it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, overload

from fairlead.errors import InvalidSpec
from fairlead.pipelines.graph import ESTIMATORS
from fairlead.spec_errors import NAME_PATTERN

SETTINGS = ("workers", "placement", "retries", "cache", "trains", "takes", "env", "secrets", "venv")
RESOURCES = ("cpu", "memory", "gpu", "device")
PLAIN: Mapping[str, Any] = {"int": int, "float": (int, float), "bool": bool, "str": str}
METHODS = ("predict", "predict_proba", "decision_function", "transform", "score")


@dataclass(frozen=True, slots=True)
class Node:
    """One stage of a pipeline being declared."""

    name: str
    stage: Stage
    args: Mapping[str, Any]  # other stages' results are Outputs


@dataclass(slots=True)
class Declaration:
    """A pipeline being declared: its stages in the order of their calls."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)


_building: ContextVar[Declaration | None] = ContextVar("fairlead-pipeline", default=None)


class Output:
    """The future result of a stage, or a part of it: pass it on as an argument; its value is not known yet."""

    def __init__(self, node: str, path: tuple[str | int, ...] = (), parts: int = 0, fitted: bool = False) -> None:
        self._node, self._path, self._parts, self._fitted = node, path, parts, fitted

    @property
    def reference(self) -> str:
        """Its reference in arguments."""
        return f"${self._node}" + "".join(f"[{key}]" for key in self._path)

    def __getitem__(self, key: str | int) -> Output:
        if not isinstance(key, str | int) or isinstance(key, bool) or "[" in str(key) or "]" in str(key):
            raise InvalidSpec(f"{key!r} is not a key of its result", field=f"stage {self._node}",
                              fix="use a name or a number, or split it inside the next stage")  # fmt: skip
        return Output(self._node, (*self._path, key))

    def __iter__(self) -> Iterator[Output]:
        if not self._parts:
            raise InvalidSpec("returns one value, as declared", field=f"stage {self._node}",
                              fix="declare how many it returns: @stage(outputs=2)")  # fmt: skip
        return iter([self[index] for index in range(self._parts)])

    def __getattr__(self, name: str) -> Callable[..., Output]:
        if name in METHODS and self._fitted:
            return lambda *args, **settings: _call_method(self, name, args, settings)
        raise AttributeError(f"stage {self._node}: its result exists only after it has run; "
                             f"use .{name} inside the next stage")  # fmt: skip

    def __bool__(self) -> NoReturn:
        raise InvalidSpec("has no result yet, so no condition can depend on it here",
                          field=f"stage {self._node}", fix="decide inside a stage")  # fmt: skip

    def __repr__(self) -> str:
        return f"<future result of {self.reference[1:]}>"


class Stage:
    """A function and its resources, run as a gang of its own."""

    def __init__(self, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self.function = function
        self.settings = dict(settings)
        self.outputs = int(self.settings.pop("outputs", 0) or 0)
        self.name = str(self.settings.pop("name", None) or stage_name(getattr(function, "__name__", "stage")))
        self.estimator: Any = None
        _check_settings(self.name, self.settings)
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        building = _building.get()
        if building is None:
            return self.function(*args, **kwargs)
        return _add_node(building, self, _bind_arguments(self, args, kwargs))

    def named(self, name: str) -> Stage:
        """The same stage under another name, to use it several times in a pipeline."""
        return self.using(name=name)

    def using(self, **settings: Any) -> Stage:
        """The same stage with other settings, such as ``cpu=2`` or ``cache=False``."""
        given = {"outputs": self.outputs, "name": self.name, **self.settings, **settings}
        other = Stage(self.function, given)
        other.estimator = self.estimator
        return other

    @property
    def trains(self) -> bool:
        """True if it returns a fairlead.Training: by its annotation, by ``trains``, or by having workers."""
        if "trains" in self.settings:
            return bool(self.settings["trains"])
        hint = getattr(self.function, "__annotations__", {}).get("return")
        named = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
        return named.rpartition(".")[2] == "Training" or (self.estimator is None and "workers" in self.settings)

    def fields(self) -> dict[str, Any]:
        """Its settings as the spec takes them."""
        resources = {name: self.settings[name] for name in RESOURCES if self.settings.get(name) is not None}
        plain = {name: self.settings[name] for name in SETTINGS if self.settings.get(name) is not None}
        return {**plain, **({"trains": True} if self.trains else {}), **({"resources": resources} if resources else {})}


@overload
def stage(what: Callable[..., Any], /, **settings: Any) -> Stage: ...
@overload
def stage(**settings: Any) -> Callable[[Callable[..., Any]], Stage]: ...
def stage(what: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Mark a function as a stage, or make one of a scikit-learn estimator: ``stage(RandomForestClassifier())(X, y)``.

    Settings: ``cpu``, ``memory``, ``gpu``, ``device``, ``workers``, ``retries``, ``cache``, ``outputs``, ``name``, ...
    """
    if what is None:
        return lambda function: Stage(function, settings)
    if hasattr(what, "fit") and hasattr(what, "get_params") and not isinstance(what, type):
        made = Stage(_fit, {"name": stage_name(type(what).__name__), **settings})
        made.estimator = what
        return made
    if not callable(what):
        raise InvalidSpec(f"{what!r} is neither a function nor an estimator", field="stage",
                          fix="mark a function with @stage, or pass an estimator with fit and get_params")  # fmt: skip
    return Stage(what, settings)


class Pipeline:
    """A function that wires stages; its own parameters have values when the graph is built."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name = name or stage_name(getattr(function, "__name__", "pipeline"))
        functools.update_wrapper(self, function, updated=())

    def declare(self, **params: Any) -> Declaration:
        """Call the function once with stages that record their calls."""
        _check_arguments(self.function, f"pipeline {self.name}", params)
        _check_types(self.function, f"pipeline {self.name}", params)
        declaration = Declaration(self.name)
        token = _building.set(declaration)
        try:
            self.function(**params)
        finally:
            _building.reset(token)
        if not declaration.nodes:
            raise InvalidSpec("calls no stage", field=f"pipeline {self.name}", fix="mark functions with @stage")
        return declaration

    __call__ = declare


def pipeline(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Mark the function that wires stages: ``@pipeline`` or ``@pipeline(name=...)``."""
    return (lambda each: Pipeline(each, name)) if function is None else Pipeline(function, name)


def stage_name(text: str) -> str:
    """A valid stage name made of any identifier."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text)
    return re.sub(r"[^a-z0-9]+", "-", split.lower()).strip("-")[:36].strip("-") or "stage"


def _add_node(building: Declaration, made: Stage, args: Mapping[str, Any]) -> Output:
    name, count = made.name, 1
    while name in building.nodes:
        count += 1
        name = f"{made.name}-{count}"
    building.nodes[name] = Node(name, made, args)
    return Output(name, (), made.outputs, fitted=made.estimator is not None)


def _bind_arguments(made: Stage, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name; a wrong one is refused where the stage is called."""
    field_ = f"stage {made.name}"
    try:
        signature = inspect.signature(made.function)
    except (TypeError, ValueError):
        raise InvalidSpec("has no signature", field=field_, fix="wrap it in a function of your own") from None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        raise InvalidSpec("takes arguments without names", field=field_, fix="name each of them in its definition")
    names = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        raise InvalidSpec(f"takes {len(names)} positional arguments and was given {len(args)}", field=field_,
                          fix=f"it takes {', '.join(signature.parameters) or 'none'}")  # fmt: skip
    given = dict(zip(names, args, strict=False))
    twice = sorted(given.keys() & kwargs.keys())
    if twice:
        raise InvalidSpec("is given twice", field=f"{field_}: {twice[0]}", fix="keep one of them")
    given |= kwargs
    _check_arguments(made.function, field_, given)
    return given


def _check_arguments(function: Callable[..., Any], owner: str, given: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for name in given:
        if name not in named and not takes_any:
            raise InvalidSpec("unknown argument", field=f"{owner}: {name}",
                              fix=f"rename it to one of: {', '.join(named) or 'none'}")  # fmt: skip
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in given:
            raise InvalidSpec("is missing, and it has no default", field=f"{owner}: {name}", fix=f"pass {name}=...")


def _check_types(function: Callable[..., Any], owner: str, given: Mapping[str, Any]) -> None:
    """Refuse a pipeline parameter of another type than annotated: in a shell, text for a number is an easy mistake."""
    for name, value in given.items():
        hint = getattr(function, "__annotations__", {}).get(name)
        kind = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
        wanted = PLAIN.get(kind)
        if wanted is not None and (not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool)):
            raise InvalidSpec(f"{value!r} is not of the type {kind}", field=f"{owner}: {name}",
                              fix="pass what the annotation of the parameter says")  # fmt: skip


def _check_settings(name: str, settings: Mapping[str, Any]) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidSpec(f"{name!r} is not a name", field="stage",
                          fix="use 1 to 40 lower-case letters, digits and hyphens")  # fmt: skip
    for given in settings:
        if given not in (*SETTINGS, *RESOURCES):
            known = ", ".join((*RESOURCES, *SETTINGS, "outputs", "name"))
            raise InvalidSpec("is not a setting of a stage", field=f"stage {name}: {given}", fix=f"use one of: {known}")


# ---------------------------------------------------------------- estimators


def _fit(X: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """The signature of an estimator's stage; the fitting itself is in ``fairlead.pipelines.estimators``."""
    raise NotImplementedError("an estimator's stage runs inside a pipeline; call its fit yourself outside of one")


def _call(fitted: Any, method: str, X: Any, y: Any = None) -> Any:
    raise NotImplementedError("runs inside a pipeline only")


def _call_method(fitted: Output, name: str, args: tuple[Any, ...], settings: Mapping[str, Any]) -> Output:
    building = _building.get()
    if building is None:
        raise InvalidSpec("is used outside of its pipeline", field=f"stage {fitted._node}",
                          fix="call it in the function marked with @pipeline")  # fmt: skip
    made = Stage(_call, {"name": f"{fitted._node[:24]}-{stage_name(name)}", **settings})
    made.estimator = name  # a method of the fitted estimator
    bound = _bind_arguments(made, (fitted, name, *args), {})
    output = _add_node(building, made, bound)
    output._fitted = False
    return output


def platform_function(made: Stage) -> str | None:
    """The platform's function that this stage runs; None if it runs the user's."""
    if made.function is _fit:
        return f"{ESTIMATORS}fit"
    return f"{ESTIMATORS}call" if made.function is _call else None


__all__ = ["Declaration", "Node", "Output", "Pipeline", "Stage", "pipeline", "platform_function", "stage"]
