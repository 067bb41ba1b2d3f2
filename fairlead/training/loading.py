"""Loads the user's Training from the job's ``run`` and ``params``; errors name the field and the fix."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fairlead import data_folder
from fairlead.errors import FairleadError, InvalidSpec
from fairlead.training.definition import Training

_PLAIN_TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
TRACE_LIMIT = 20_000


def load_training(run: str, params: Mapping[str, Any]) -> Training:
    """Call the function that ``run`` names with ``params``; refuses a result that is no Training."""
    function = load_function(run)
    check_params(function, run, params)
    training = function(**params)
    if not isinstance(training, Training):
        raise InvalidSpec(
            f"{run} returned {type(training).__name__}, not a fairlead.Training", field="run", value=run,
            fix="return fairlead.Training(model=..., data=..., loss=..., batch_size=..., epochs=...)",
        )  # fmt: skip
    return training


def load_function(run: str) -> Callable[..., Any]:
    """The function named ``file.py:function``, ``package.module:function`` or ``file.cloudpickle:function``."""
    where, colon, name = run.rpartition(":")
    if not colon or not where or not name:
        raise InvalidSpec(f"{run!r} does not name a function", field="run", value=run, fix="write file.py:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if where.endswith(".cloudpickle"):
        function = _unpickle(run, Path(where))
    else:
        module = _import_file(run, Path(where)) if where.endswith(".py") else _import_module(run, where)
        function = getattr(module, name, None)
    if not callable(function):
        raise InvalidSpec(f"there is no function {name} in {where}", field="run", value=run, fix="check the spelling")
    found: Callable[..., Any] = function
    return found


def _unpickle(run: str, path: Path) -> Any:
    import cloudpickle

    _require_file(run, path)
    # The submitter's own function, unpickled only in the submitter's own worker, as the submitter's own user.
    return cloudpickle.loads(path.read_bytes())


def _import_file(run: str, path: Path) -> ModuleType:
    _require_file(run, path)
    if str(path.parent) != "." and str(path.parent.absolute()) not in sys.path:
        sys.path.insert(1, str(path.parent.absolute()))
    # As __main__ a script would run its main part; under the file's own name its classes can be pickled.
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"fairlead_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None:
        raise InvalidSpec(f"{path} cannot be imported", field="run", value=run, fix="name a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_module(run: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists; one that it imports does not
        raise InvalidSpec(
            f"there is no module {name} in the code bundle",
            field="run",
            value=run,
            fix="check the spelling and the ignore file",
        ) from None


def _require_file(run: str, path: Path) -> None:
    if not path.is_file():
        raise InvalidSpec(
            f"there is no file {path} in the code bundle",
            field="run",
            value=run,
            fix="check the spelling and the ignore file",
        )


def check_params(function: Callable[..., Any], run: str, params: Mapping[str, Any], *, typed: bool = True) -> None:
    """Refuse parameters that the function does not take, missing ones, and plain values of a wrong type."""
    try:
        accepted = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # a callable without a signature is called as it is
    kinds = {parameter.kind for parameter in accepted.values()}
    named = {name: p for name, p in accepted.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for name, value in params.items():
        if name not in named and inspect.Parameter.VAR_KEYWORD not in kinds:
            takes = f"it takes {', '.join(named)}" if named else "it takes none"
            raise InvalidSpec(
                f"{run} has no parameter {name}; {takes}", field=f"params.{name}", fix="rename or remove it"
            )
        if name in named and typed:
            _check_type(name, value, named[name].annotation)
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in params:
            raise InvalidSpec(
                f"{run} needs it and it has no default", field=f"params.{name}", fix=f"add params: {{{name}: ...}}"
            )


def _check_type(name: str, value: Any, annotation: Any) -> None:
    """Catch ``lr: "1e-3"`` before it fails deep inside an optimizer."""
    wanted = _PLAIN_TYPES.get(annotation) if isinstance(annotation, str) else annotation
    if not isinstance(wanted, type) or wanted not in _PLAIN_TYPES.values():
        return
    number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, bool) if wanted is bool else (isinstance(value, wanted) and not isinstance(value, bool)):
        return
    if wanted is float and number:
        return
    raise InvalidSpec(
        f"{value!r} is not of type {wanted.__name__}", field=f"params.{name}", fix=f"write it as {wanted.__name__}"
    )


def describe(error: BaseException) -> tuple[str, str]:
    """The error as one line with the user's own source line, and the traceback without the platform's frames."""
    line, trace = _described(error)
    advice = data_folder.advice(line, os.environ)
    return f"{line}; {advice}" if advice else line, trace


def _described(error: BaseException) -> tuple[str, str]:
    if isinstance(error, FairleadError):
        return f"{error} (fix: {error.fix})" if error.fix else str(error), ""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [frame for frame in frames if not frame.filename.startswith(ours) and "importlib" not in frame.filename]
    here = str(Path.cwd())
    own = [frame for frame in theirs if frame.filename.startswith(here)] or theirs
    message = " ".join(str(error).split())[:500]
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError):
        line = f"{type(error).__name__}: {error.msg} ({Path(error.filename or '?').name}:{error.lineno})"
    elif own:
        line += f" ({Path(own[-1].filename).name}:{own[-1].lineno})"
    line = ", ".join([line, *getattr(error, "__notes__", [])])
    lines = traceback.format_list(theirs) + traceback.format_exception_only(error)
    return line, "".join(lines)[-TRACE_LIMIT:]
