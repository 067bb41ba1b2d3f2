"""Packs a Python function for a job: by file name if its file is uploaded, else pickled by value."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fairlead.errors import InvalidSpec

PICKLE = "fairlead_function.cloudpickle"


@dataclass(frozen=True, slots=True)
class PackedFunction:
    """What to run, the folder to upload (None: none), and the pickled function if it is sent by value."""

    run: str
    folder: Path | None
    pickled: bytes | None = None

    @property
    def extra(self) -> dict[str, bytes]:
        return {} if self.pickled is None else {PICKLE: self.pickled}


def pack_function(function: Callable[..., Any], folder: Path | None = None) -> PackedFunction:
    """Pack a function for its workers; a pickle is loaded only in the submitter's own workers."""
    module = inspect.getmodule(function.func if isinstance(function, functools.partial) else function)
    source = _source(module)
    chosen = folder.absolute() if folder is not None else _folder(source, module)
    if source is not None and chosen is not None and module is not None and _by_name(function, module):
        run = _reference(source, chosen, module, getattr(function, "__name__", ""))
        if run is not None:
            return PackedFunction(run, chosen)
    return PackedFunction(f"{PICKLE}:{function_name(function)}", chosen, _pickled(function, module))


def function_name(function: Callable[..., Any]) -> str:
    """The function's name; ``training`` for lambdas and partials."""
    name = str(getattr(function, "__name__", ""))
    return name if name.isidentifier() else "training"


def job_name(text: str) -> str:
    """A valid job name derived from any text."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return name or "job"


def _source(module: ModuleType | None) -> Path | None:
    """The file of a user's module; None for installed modules, scripts and notebooks."""
    name = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__" or name is None:
        return None
    path = Path(name).absolute()
    installed = [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib")]
    return None if any(path.is_relative_to(place) for place in installed) else path


def _folder(source: Path | None, module: ModuleType | None) -> Path | None:
    here = Path.cwd()
    if source is not None and module is not None and not source.is_relative_to(here):
        depth = module.__name__.count(".") + (source.name == "__init__.py")
        return source.parents[min(depth, len(source.parents) - 1)]
    # A notebook's helpers lie beside it, but never upload a whole home or root folder.
    return None if here in (Path.home(), Path(here.anchor)) else here


def _by_name(function: Callable[..., Any], module: ModuleType) -> bool:
    name = getattr(function, "__qualname__", "")
    return name.isidentifier() and getattr(module, name, None) is function


def _reference(source: Path, folder: Path, module: ModuleType, name: str) -> str | None:
    if not source.is_relative_to(folder) or source.suffix != ".py":
        return None
    inside = source.relative_to(folder)
    if module.__package__ and inside.with_suffix("").parts == tuple(module.__name__.split(".")):
        return f"{module.__name__}:{name}"  # relative imports in a package need the dotted name
    return f"{inside.as_posix()}:{name}"


def _pickled(function: Callable[..., Any], module: ModuleType | None) -> bytes:
    import cloudpickle

    by_value = module is not None and module.__name__ in sys.modules and _source(module) is not None
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as error:  # noqa: BLE001 (pickling user objects may raise anything)
        raise InvalidSpec(
            f"the function {function_name(function)} cannot be sent: {error}",
            field="run",
            fix="create the objects it needs inside the function, or move it to a file and submit file.py:function",
        ) from None
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
