"""Turns a pipeline in Python or YAML into a checked spec and its code bundle."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.errors import InvalidSpec
from fairlead.pipelines import argument_refs
from fairlead.pipelines.code_dependencies import Sources
from fairlead.pipelines.declarations import Declaration, Node, Output, Pipeline, Stage, platform_function
from fairlead.pipelines.graph import ESTIMATORS, PipelineSpec, StageSpec, parse_pipeline
from fairlead.sdk import bundle, function_lookup, functions, mentioned_datasets
from fairlead.sdk.yaml_files import read_yaml

VALUES = "fairlead_values"
STAGES = "fairlead_stages"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A pipeline ready to be packed and sent."""

    spec: PipelineSpec
    folder: Path | None
    extra: Mapping[str, bytes]
    source: str | None = None

    def pack(self) -> bundle.Bundle:
        packed = bundle.pack(self.folder, self.extra)
        for name, stage in self.spec.stages.items():
            place = (stage.run or "").rpartition(":")[0]
            if self.folder is not None and place.endswith(".py"):
                field = f"{self.source}: stages.{name}.run" if self.source else f"stages.{name}.run"
                if place not in packed.files:
                    raise InvalidSpec(f"there is no file {place} in {self.folder}", field=field, value=stage.run,
                                      fix="correct the path, or choose another folder")  # fmt: skip
                function_lookup.check(
                    stage.run or "", self.folder, packed.files, field=field, newest=stage.venv is None
                )
        return packed

    def body(self, code: str) -> dict[str, Any]:
        """The spec as JSON values for the API."""
        document = self.spec.model_copy(update={"code": code})
        return document.model_dump(mode="json", by_alias=True, exclude_none=True)


def prepare(
    what: Pipeline | Declaration | Mapping[str, Any] | str | Path, folder: Path | None, params: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> Prepared:  # fmt: skip
    """Prepare a function marked with @pipeline, ``file.py:pipeline``, a YAML file or a mapping."""
    given = {name: value for name, value in fields.items() if value is not None}
    if isinstance(what, Pipeline):
        return _declared(what.declare(**params), folder, given)
    if isinstance(what, Declaration):
        return _declared(what, folder, given)
    if isinstance(what, Mapping):
        return _written({**what, **given}, folder or Path.cwd(), None)
    if str(what).endswith((".yaml", ".yml")):
        path = Path(what).expanduser()
        data = read_yaml(path)
        if not isinstance(data, Mapping):
            raise InvalidSpec("contains no pipeline", field=path.name, fix="write name: ... and stages: ...")
        if params:
            raise InvalidSpec(f"{min(params)}: pipelines in YAML have no parameters", field="params",
                              fix="write the value into the file")  # fmt: skip
        return _written({**data, **given}, folder or path.absolute().parent, path.name)
    found, chosen = load(str(what), folder)
    return _declared(found.declare(**params), chosen, given)


# ---------------------------------------------------------------- declared in Python


def load(what: str, folder: Path | None) -> tuple[Pipeline, Path]:
    """The pipeline ``file.py:name`` and its folder; imports the caller's own file in this process."""
    place, colon, name = what.rpartition(":")
    if not colon or not place.endswith(".py") or not name.isidentifier():
        raise InvalidSpec(f"{what!r} is not a pipeline", fix="write file.py:pipeline, or the name of a YAML file")
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        raise InvalidSpec("there is no such file", field=place, fix="correct the path")
    here = Path.cwd()
    chosen = folder.expanduser().absolute() if folder else here if path.is_relative_to(here) else path.parent
    for each in (str(chosen), str(path.parent)):
        if each not in sys.path:
            sys.path.insert(0, each)
    found = getattr(_imported(path), name, None)
    if not isinstance(found, Pipeline):
        what_it_is = "is not there" if found is None else f"is a {type(found).__name__}"
        raise InvalidSpec(
            f"{name} {what_it_is}", field=place, fix="mark the function that connects the stages with @pipeline"
        )
    return found, chosen


def _imported(path: Path) -> Any:
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        del sys.modules[path.stem]  # import it again: it may have changed
        known = None
    name = path.stem if path.stem.isidentifier() and known is None else f"fairlead_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidSpec("cannot be imported", field=path.name, fix="name a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except InvalidSpec:
        raise
    except Exception as error:  # noqa: BLE001 (user code may raise anything)
        raise InvalidSpec(f"cannot be imported: {type(error).__name__}: {error}", field=path.name,
                          fix=f"make python {path.name} run") from None  # fmt: skip
    return module


def _declared(declaration: Declaration, folder: Path | None, given: Mapping[str, Any]) -> Prepared:
    packing = _Packing(folder)
    stages = {node.name: packing.stage(node) for node in declaration.nodes.values()}
    spec = parse_pipeline({"name": declaration.name, **given, "stages": stages})
    if packing.folder is not None:
        sources = Sources(packing.folder)
        own = {name: _reading(stage, sources) for name, stage in spec.stages.items()}
        spec = spec.model_copy(update={"stages": own})
    return Prepared(spec, packing.folder, packing.extra)


def _reading(stage: StageSpec, sources: Sources) -> StageSpec:
    """The stage plus the data sets named in its training's text; unchanged if it lists data sets."""
    if not stage.trains or stage.data or stage.run is None:
        return stage
    texts = sources.texts(_file(stage.run.rpartition(":")[0]))
    found = dict.fromkeys(name for text in texts for name in mentioned_datasets.mentioned_datasets(text))
    return stage.model_copy(update={"data": list(found)})


class _Packing:
    """Collects the files to upload while stages are turned into plain values."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.extra: dict[str, bytes] = {}
        self._sources: Sources | None = None

    def stage(self, node: Node) -> dict[str, Any]:
        own = platform_function(node.stage)
        args = {name: self._arg(value, f"stage {node.name}: {name}") for name, value in node.args.items()}
        if own is not None:
            made = node.stage.estimator
            if own.endswith(":fit"):
                args = {"estimator": self._estimator(made, f"stage {node.name}"), **args}
            digest = f"sha256:{hashlib.sha256(own.encode()).hexdigest()}"  # user code is in its arguments
            return {**node.stage.fields(), "run": own, "args": args, "source": digest}
        run, source = self._function(node)
        return {**node.stage.fields(), "run": run, "args": args, **({"source": source} if source else {})}

    def _function(self, node: Node) -> tuple[str, str | None]:
        way = functions.pack_function(_as_written(node.stage), self.folder)
        self.folder = self.folder or way.folder
        if way.pickled is None:
            return way.run, self._digest(way.run)
        bare = functions.pack_function(node.stage.function, self.folder).pickled
        name = f"{STAGES}/{node.name}.cloudpickle"
        self.extra[name] = bare if bare is not None else way.pickled
        digest = hashlib.sha256(self.extra[name]).hexdigest()
        return f"{name}:{functions.function_name(node.stage.function)}", f"sha256:{digest}"

    def _digest(self, run: str) -> str | None:
        if self.folder is None:
            return None
        self._sources = self._sources or Sources(self.folder)
        return source_digest(self._sources, run)

    def _arg(self, value: Any, field: str) -> Any:
        if isinstance(value, Output):
            return value.reference
        if isinstance(value, str):
            return argument_refs.escape(str(value))
        if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
            return value
        if type(value) is list or (type(value) is tuple and _holds_output(value)):
            return [self._arg(each, field) for each in value]
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {key: self._arg(each, field) for key, each in value.items()}
        return self._pickled(value, field)

    def _estimator(self, made: Any, field: str) -> Any:
        """The estimator as its name and non-default parameters, if that is complete: readable and stable."""
        kind = type(made)
        defaults = kind().get_params(deep=False) if not _needs_arguments(kind) else None
        if defaults is not None and kind.__module__.startswith("sklearn."):
            chosen = {k: v for k, v in made.get_params(deep=False).items() if not _same(v, defaults.get(k))}
            if all(value is None or type(value) in (bool, int, float, str) for value in chosen.values()):
                params = {name: self._arg(value, field) for name, value in chosen.items()}
                return {"class": f"{kind.__module__}.{kind.__qualname__}", "params": params}
        return self._pickled(made, field)

    def _pickled(self, value: Any, field: str) -> str:
        import cloudpickle

        try:
            data = bytes(cloudpickle.dumps(value))
        except Exception as error:  # noqa: BLE001 (pickling user objects may raise anything)
            raise InvalidSpec(f"a {type(value).__name__} cannot be sent: {error}", field=field,
                              fix="create it inside the stage, or pass plain values") from None  # fmt: skip
        name = hashlib.sha256(data).hexdigest()[:40]
        self.extra[f"{VALUES}/{name}.cloudpickle"] = data
        return f"{argument_refs.VALUE_PREFIX}{name}"


def _holds_output(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_holds_output(each) for each in value)
    return isinstance(value, Output)


def _needs_arguments(kind: type) -> bool:
    import inspect

    parameters = list(inspect.signature(kind).parameters.values())
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


# ---------------------------------------------------------------- written in YAML


def _as_written(made: Stage) -> Stage | Callable[..., Any]:
    """The code identity of a stage in the user's file, independent of its name and settings."""
    module = sys.modules.get(getattr(made.function, "__module__", ""))
    found: Any = getattr(module, getattr(made.function, "__qualname__", ""), None)
    return found if found is made.function or getattr(found, "function", None) is made.function else made


def _written(data: Mapping[str, Any], folder: Path, source: str | None) -> Prepared:
    stages = data.get("stages")
    sources = Sources(folder)
    if isinstance(stages, Mapping):
        data = {**data, "stages": {name: _stage(each) for name, each in stages.items()}}
    spec = parse_pipeline(data, source=source)
    place = f"{source}: " if source else ""
    found = {}
    for name, stage in spec.stages.items():
        if stage.run is not None:
            _check_names(sources, stage.run, stage.args, f"{place}stages.{name}.args")
            own = source_digest(sources, stage.run)
            if own is not None and stage.source is None:
                stage = stage.model_copy(update={"source": own})
        found[name] = _reading(stage, sources)
    return Prepared(spec.model_copy(update={"stages": found}), folder, {}, source)


def _stage(written: Any) -> Any:
    """The stage of an estimator: ``estimator: sklearn.svm.SVC``, ``params`` and inputs in ``args``."""
    if not isinstance(written, Mapping) or "estimator" not in written:
        return written
    rest = {name: value for name, value in written.items() if name not in ("estimator", "params")}
    made = {"class": written["estimator"], "params": dict(written.get("params") or {})}
    return {**rest, "run": f"{ESTIMATORS}fit", "args": {"estimator": made, **dict(rest.get("args") or {})}}


def _check_names(sources: Sources, run: str, args: Mapping[str, Any], field: str) -> None:
    place, _, function = run.rpartition(":")
    takes = sources.parameters(_file(place), function)
    if takes is None:
        return
    names, needed = takes
    for name in args:
        if name not in names:
            raise InvalidSpec("unknown argument", field=f"{field}.{name}",
                              fix=f"rename it to one of: {', '.join(names) or 'none'}")  # fmt: skip
    missing = [name for name in needed if name not in args]
    if missing:
        raise InvalidSpec("is missing and has no default", field=f"{field}.{missing[0]}",
                          fix=f"add {missing[0]}: ...")  # fmt: skip


def source_digest(sources: Sources, run: str) -> str | None:
    """The hash of the code that a stage's function depends on; None: of the whole bundle."""
    place, _, function = run.rpartition(":")
    if run.startswith(ESTIMATORS):
        return f"sha256:{hashlib.sha256(run.encode()).hexdigest()}"
    return sources.digest(_file(place), function)


def _file(place: str) -> str:
    return place if place.endswith(".py") else place.replace(".", "/") + ".py"
