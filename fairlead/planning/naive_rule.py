"""The baseline rule for choosing a plan: compare the size of the data with that of the model (U3)."""

from __future__ import annotations

from fairlead.planning.plan import SINGLE, Plan, ddp_plan
from fairlead.planning.plan_candidates import Shape
from fairlead.planning.profiles import Hardware, ModelProfile
from fairlead.planning.stage_assignment import assign_stages
from fairlead.planning.topology import Topology

DWARFS = 10.0
"""Ratio of the sizes beyond which the larger one decides alone."""


def naive_plan(model: ModelProfile, hardware: Hardware) -> Plan:
    """Data parallel if the data dwarfs the model, pipeline stages if the model dwarfs the data, else both."""
    workers = len(hardware.seats)
    data, own = model.samples * model.sample_bytes, model.parameters * model.parameter_bytes
    if workers == 1:
        return SINGLE
    if data > DWARFS * own or len(model.layers) == 1:
        return ddp_plan(workers)
    deep = workers if own > DWARFS * data or workers % 2 else 2
    depth = min(deep, len(model.layers))
    width = workers // depth
    many = next((m for m in (4 * depth, 2 * depth, depth) if model.batch_size % (m * width) == 0), 0)
    if depth * width != workers or not many or (model.batch_norm and model.exact):
        return ddp_plan(workers)
    shape = Shape(
        data=width, pipeline=depth, microbatches=many, schedule="1f1b", sync="allreduce" if width > 1 else "none"
    )
    return assign_stages(model, Topology(hardware), shape) or ddp_plan(workers)
