"""Fingerprints: what a stage's result depends on, so that the same stage with the same inputs is not run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from fairlead.pipelines.graph import PipelineSpec, StageSpec, order

NO_VERSIONS: Mapping[str, str] = {}
VERSION = 1  # counted up when results of before can no longer be read


def fingerprints(spec: PipelineSpec, versions: Mapping[str, str] = NO_VERSIONS) -> Mapping[str, str]:
    """By stage: a hash of its code, its arguments, its data sets and the fingerprints of all that comes before it.

    ``versions`` are the data sets that there are: a training that is given the name of one reads that version.
    What it runs on is not in it: more cores or another node give the same result sooner, not another result.
    """
    found: dict[str, str] = {}
    for name in order(spec.upstream):
        stage = spec.stages[name]
        facts = {
            "version": VERSION,
            "run": stage.run,
            "command": stage.command,
            "args": stage.args,
            "env": stage.env,
            "venv": stage.venv,
            "code": stage.source or spec.code,
            "upstream": {other: found[other] for other in sorted(stage.upstream)},
        }
        if data := _data_versions(stage, versions):
            facts["data"] = data
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def _data_versions(stage: StageSpec, versions: Mapping[str, str]) -> list[str]:
    """The versions that it reads, as far as it says so: by its text, or in its arguments."""
    given = [each for each in stage.args.values() if isinstance(each, str)] if stage.trains else []
    return sorted({*stage.data, *(f"{name}@{versions[name]}" for name in given if name in versions)})


def cacheable_stages(spec: PipelineSpec) -> frozenset[str]:
    """Stages for which an earlier result may stand: those that say so, and that follow only such stages.

    What a stage with ``cache=False`` gives is known when it has run, so nothing is known of what follows from it.
    """
    found: set[str] = set()
    for name in order(spec.upstream):
        if spec.stages[name].cache and spec.upstream[name] <= found:
            found.add(name)
    return frozenset(found)
