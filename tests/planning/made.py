"""Small models and hardware for the planner's tests, plain and drawn at random."""

from __future__ import annotations

from hypothesis import strategies as st

from fairlead.planning.plan import Split
from fairlead.planning.profiles import Device, Hardware, Layer, Link, ModelProfile, Seat

CPU = Device(
    name="cpu", flops_per_s={"float32": 50e9}, efficiency=0.7, memory_bytes=4e9, memory_bytes_per_s=8e9,
    launch_s=5e-6, overlap=0.2, backend="gloo", step_s=3e-4,
)  # fmt: skip
CARD = Device(
    name="card", flops_per_s={"float32": 20e12}, memory_bytes=16e9, memory_bytes_per_s=9e11,
)  # fmt: skip
FAST, SLOW = Link(2e-4, 1.5e9), Link(3e-4, 25e6)


def hardware(
    count: int = 2, *, link: Link = FAST, speeds: tuple[float, ...] = (), device: Device = CPU, per_node: int = 1
) -> Hardware:
    """So many workers, ``per_node`` to a node, with this link between nodes."""
    pace = speeds or (1.0,) * count
    seats = tuple(Seat(device.name, f"n{at // per_node}", pace[at]) for at in range(count))
    return Hardware(devices={device.name: device}, seats=seats, links=(FAST, link))


def model(
    layers: int = 6, *, batch: int = 64, flops: float = 2e7, parameters: int = 500_000, **more: object
) -> ModelProfile:
    """Equal layers that can be cut anywhere and split by two."""
    each = tuple(
        Layer(
            name=f"layers.{at}", parameters=parameters, flops=flops, activation_bytes=flops / 1e3, output_bytes=4e3,
            kernels=4, splits=((f"layers.{at}.a", "column"), (f"layers.{at}.b", "row")),
            split_parameters=parameters, split_flops=flops, split_activation_bytes=flops / 2e3, exchange_bytes=8e3,
            exchanges=2,
        )
        for at in range(layers)
    )  # fmt: skip
    return ModelProfile(layers=each, batch_size=batch, tensor_limit=2, **more)  # type: ignore[arg-type]


@st.composite
def models(draw: st.DrawFn) -> ModelProfile:
    count = draw(st.integers(1, 6))
    splittable = draw(st.booleans())
    layers = []
    for at in range(count):
        flops, parameters = draw(st.floats(1e4, 1e9)), draw(st.integers(0, 20_000_000))
        cut: tuple[tuple[str, Split], ...] = ((f"l{at}.a", "column"),) if splittable and parameters else ()
        layers.append(
            Layer(
                name=f"l{at}", parameters=parameters, flops=flops, activation_bytes=draw(st.floats(0, 1e6)),
                output_bytes=draw(st.floats(0, 1e6)), kernels=draw(st.integers(1, 30)), splits=cut,
                split_parameters=parameters if cut else 0, split_flops=flops if cut else 0.0,
                exchange_bytes=1e4 if cut else 0.0, exchanges=2 if cut else 0,
            )
        )  # fmt: skip
    return ModelProfile(
        layers=tuple(layers), batch_size=draw(st.sampled_from([1, 6, 16, 48])),
        tensor_limit=draw(st.sampled_from([2, 4, 6])), batch_norm=draw(st.sampled_from([0, 0, 2])),
        exact=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> Hardware:
    count = draw(st.integers(1, 4))
    speeds = tuple(draw(st.sampled_from([1.0, 1.0, 0.5, 0.25])) for _ in range(count))
    memory = draw(st.sampled_from([4e9, 4e9, 3e8, 1e8]))
    device = Device(
        name="cpu", flops_per_s={"float32": 50e9}, memory_bytes=memory, memory_bytes_per_s=8e9, backend="gloo",
        step_s=3e-4, overlap=draw(st.sampled_from([0.0, 0.2, 0.8])),
    )  # fmt: skip
    link = Link(draw(st.sampled_from([1e-4, 1e-3])), draw(st.sampled_from([1e7, 1e8, 1e9])))
    return hardware(count, link=link, speeds=speeds, device=device, per_node=draw(st.sampled_from([1, 2])))
