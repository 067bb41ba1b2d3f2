"""Fingerprints.

Hashes of all that a stage's result depends on, so that the same stage with the same inputs is not run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from fairlead.pipelines.graph import PipelineSpec, StageSpec, order

NO_VERSIONS: Mapping[str, str] = {}
VERSION = 1  # incremented when earlier results can no longer be read


def fingerprints(spec: PipelineSpec, versions: Mapping[str, str] = NO_VERSIONS) -> Mapping[str, str]:
    """By stage: a hash of its code, arguments, data sets and the fingerprints of all its upstream stages.

    ``versions`` are the current data sets: a training given the name of one reads that version. Resources are not
    included: more cores give the same result sooner.
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
    """The data set versions that a stage reads, from its spec or its arguments."""
    given = [each for each in stage.args.values() if isinstance(each, str)] if stage.trains else []
    return sorted({*stage.data, *(f"{name}@{versions[name]}" for name in given if name in versions)})


def cacheable_stages(spec: PipelineSpec) -> frozenset[str]:
    """Stages whose earlier result may be reused: they allow it, and all their upstream stages are cacheable.

    The result of a stage with ``cache=False`` is known only after it ran, so nothing is known of its downstream stages.
    """
    found: set[str] = set()
    for name in order(spec.upstream):
        if spec.stages[name].cache and spec.upstream[name] <= found:
            found.add(name)
    return frozenset(found)
