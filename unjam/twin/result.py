"""What the simulation of one training step yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unjam.cost.batch import FloatArray
from unjam.spec.plan import Prediction
from unjam.spec.strategy import Strategy
from unjam.twin.timeline import Timeline


@dataclass(frozen=True)
class StepResult:
    """One simulated step of one strategy.

    Attributes:
        strategy: the strategy.
        prediction: its figures.
        timeline: the pipeline part of the step.
        static_gib: GiB per rank that do not change over the step, by name, each ``[P]``.
        activation_gib: per rank, GiB of activations held while slot i runs (aligned with the
            timeline's slots).
        limit_gib: GiB of a device that a plan may fill (`unjam.cost.memory.USABLE_SHARE`).
        stage_seconds: seconds of each stage's sub-operations by the names of
            ``unjam.cost.layer.SUB_OPERATIONS`` (``A_f``, ``D_f``, ``E_f``, ``C_f``, ...), each
            ``[P*V]``, stage ``s = chunk * P + rank``.
        tail_seconds: after the pipeline, by name (gradient reduce-scatter, optimizer, ...).
    """

    strategy: Strategy
    prediction: Prediction
    timeline: Timeline
    static_gib: Mapping[str, FloatArray]
    activation_gib: tuple[FloatArray, ...]
    limit_gib: float
    stage_seconds: Mapping[str, FloatArray]
    tail_seconds: Mapping[str, float]
