"""Computes profiles of GPT-like transformers from their dimensions, for plans on paper."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.planning.profiles import Layer, ModelProfile

_KERNELS = 20  # of one block, forward
_HALF = 2.0  # bytes of a number in half precision


@dataclass(frozen=True, slots=True)
class Transformer:
    """The dimensions of a transformer. ``fused``: attention without a stored score matrix (FlashAttention)."""

    blocks: int
    hidden: int
    heads: int
    sequence: int = 2048
    vocabulary: int = 51200
    fused: bool = True
    tied: bool = True  # input and output embeddings are shared

    def profile(self, batch_size: int, *, state_bytes: float = 12.0, parameter_bytes: float = 2.0) -> ModelProfile:
        """Mixed precision with Adam: half-precision copies to compute with, float32 masters and two moments.

        Formulas of Narayanan et al. (2021) for FLOPs and of Korthikanti et al. (2022) for kept activations.
        """
        width = self.sequence * self.hidden
        embedding = Layer(
            name="embedding", parameters=(self.vocabulary + self.sequence) * self.hidden,
            output_bytes=_HALF * width, activation_bytes=_HALF * width, kernels=3,
            splits=(("embedding", "vocabulary"),), split_parameters=self.vocabulary * self.hidden,
            exchange_bytes=_HALF * width, exchanges=1,
        )  # fmt: skip
        middle = tuple(self._block(place) for place in range(self.blocks))
        return ModelProfile(
            layers=(embedding, *middle, self._head()), batch_size=batch_size, dtype="bfloat16",
            sample_bytes=8.0 * self.sequence, parameter_bytes=parameter_bytes, gradient_bytes=parameter_bytes,
            state_bytes=state_bytes, tensor_limit=self.heads,
            working_bytes=0.0,
        )  # fmt: skip

    def _block(self, place: int) -> Layer:
        width = self.sequence * self.hidden
        flops = 24.0 * width * self.hidden + 4.0 * width * self.sequence
        scores = 0.0 if self.fused else 5.0 * self.heads * self.sequence**2
        parameters = 12 * self.hidden**2 + 13 * self.hidden
        return Layer(
            name=f"blocks.{place}", parameters=parameters, flops=flops, kernels=_KERNELS,
            activation_bytes=34.0 * width + scores, output_bytes=_HALF * width,
            splits=((f"blocks.{place}.in", "column"), (f"blocks.{place}.out", "row")),
            split_parameters=12 * self.hidden**2, split_flops=flops,
            split_activation_bytes=24.0 * width + scores, exchange_bytes=4 * _HALF * width, exchanges=4,
        )  # fmt: skip

    def _head(self) -> Layer:
        logits = float(self.sequence * self.vocabulary)
        flops = 2.0 * logits * self.hidden
        own = 2 * self.hidden + (0 if self.tied else self.vocabulary * self.hidden)
        return Layer(
            name="head", parameters=own, flops=flops, kernels=6, activation_bytes=4.0 * logits, output_bytes=0.0,
            splits=(("head", "column"),), split_parameters=own - 2 * self.hidden, split_flops=flops,
            split_activation_bytes=4.0 * logits, exchange_bytes=_HALF * self.sequence * self.hidden, exchanges=1,
        )  # fmt: skip

    def training_flops(self, batch_size: int, *, recompute: bool) -> float:
        """FLOPs of one step as Megatron-LM counts them, with recomputation as a fourth pass."""
        forward = self.blocks * (24.0 * self.hidden**2 + 4.0 * self.sequence * self.hidden)
        head = 2.0 * self.hidden * self.vocabulary
        return batch_size * self.sequence * (forward * (4 if recompute else 3) + head * 3)
