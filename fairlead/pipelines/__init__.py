"""Pipelines: graphs of stages declared in Python or YAML.

Each stage runs as a gang and passes its result through memory.
"""

from fairlead.pipelines.declarations import Pipeline, Stage, pipeline, stage

__all__ = ["Pipeline", "Stage", "pipeline", "stage"]
