"""Bytes on every pipeline rank over a simulated step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.cost.batch import FloatArray
from unjam.cost.compute import BF16_BYTES
from unjam.cost.memory import FRAGMENTATION, GRADIENT_BYTES, ParameterBuckets, static_bytes
from unjam.schedule.in_flight import peak_in_flight
from unjam.twin.inputs import StepInputs

GIB = 2.0**30


@dataclass(frozen=True)
class RankMemory:
    """GiB per pipeline rank.

    Attributes:
        static: parts that stay over the step, by name, each ``[P]``.
        activations: in-flight peak, ``[P]``.
        working: largest momentary need (recomputation, dispatch, logits), ``[P]``.
    """

    static: dict[str, FloatArray]
    activations: FloatArray
    working: FloatArray

    @property
    def peak(self) -> FloatArray:
        """Peak of each rank, ``[P]``."""
        return np.asarray(sum(self.static.values()) + self.activations + self.working)

    def parts(self, rank: int) -> dict[str, float]:
        """The peak of one rank by name."""
        parts = {name: float(x[rank]) for name, x in self.static.items()}
        parts["activations"] = float(self.activations[rank])
        parts["working"] = float(self.working[rank])
        return parts


def stage_bytes(inputs: StepInputs) -> FloatArray:
    """Activation bytes that one micro-batch leaves in each stage, ``[P*V]``."""
    return inputs.per_stage(inputs.kept) * (1 + FRAGMENTATION)


def rank_memory(inputs: StepInputs) -> RankMemory:
    """Memory of every pipeline rank; the in-flight peak follows from the schedule's order."""
    strategy = inputs.strategy
    params = ParameterBuckets(
        inputs.per_rank(inputs.per_stage(inputs.dense)),
        inputs.per_rank(inputs.per_stage(inputs.routed)),
    )
    fixed = static_bytes(params, inputs.batch, inputs.job.dtype)
    ones = np.ones(strategy.pp)
    static = {
        "weights": fixed.weights / GIB,
        "gradients": fixed.gradients / GIB,
        "optimizer": fixed.optimizer / GIB,
        "reserved": ones * inputs.cluster.device.reserved_bytes / GIB,
    }
    if strategy.zero >= 2:
        # Two units at a time have their full gradients, under ZeRO-3 their full weights too.
        largest = 2 * np.max(inputs.dense + inputs.routed)
        size = GRADIENT_BYTES + BF16_BYTES * (strategy.zero == 3)
        static["gathered units"] = ones * largest * size / GIB
    activations = peak_in_flight(inputs.schedule, stage_bytes(inputs)) / GIB
    return RankMemory(static, activations, _working(inputs) / GIB)


def _working(inputs: StepInputs) -> FloatArray:
    """The largest momentary need of a unit on each rank, ``[P]`` bytes."""
    strategy = inputs.strategy
    out = np.zeros(strategy.pp)
    for stage in range(strategy.pp * strategy.vpp):
        units = inputs.units[inputs.offsets[stage] : inputs.offsets[stage + 1]]
        if len(units):
            rank = stage % strategy.pp
            out[rank] = max(out[rank], float(inputs.working[units].max()))
    return out
