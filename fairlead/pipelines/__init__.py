"""Graphs of stages: declared in Python or YAML, run as gangs of their own, with results that pass through memory."""

from fairlead.pipelines.declarations import Pipeline, Stage, pipeline, stage

__all__ = ["Pipeline", "Stage", "pipeline", "stage"]
