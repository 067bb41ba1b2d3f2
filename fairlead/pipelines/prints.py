"""Fingerprints: what a stage's result depends on, so that the same stage with the same inputs is not run again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from fairlead.pipelines.graph import PipelineSpec, order

VERSION = 1  # counted up when results of before can no longer be read


def fingerprints(spec: PipelineSpec) -> Mapping[str, str]:
    """By stage: a hash of its code, its arguments and the fingerprints of all that comes before it.

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
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def lasting(spec: PipelineSpec) -> frozenset[str]:
    """Stages for which an earlier result may stand: those that say so, and that follow only such stages.

    What a stage with ``cache=False`` gives is known when it has run, so nothing is known of what follows from it.
    """
    found: set[str] = set()
    for name in order(spec.upstream):
        if spec.stages[name].cache and spec.upstream[name] <= found:
            found.add(name)
    return frozenset(found)
