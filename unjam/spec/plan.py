"""The plan: the one file that simulate, rehearse, train and export share.

A plan is self-contained. It holds the model's configuration fields and the cluster's numbers
themselves, not their names alone, so that it means the same after a preset or a file has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unjam.spec.strategy import JobSpec, Strategy

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the twin expects of a strategy.

    Attributes:
        step_seconds: time of one training step.
        tokens_per_second_per_device: ``GBS * S / step_seconds / devices``.
        mfu: model FLOPs (causal attention halved, recompute not counted, MTP counted) over the
            dense peak of the job's dtype.
        peak_memory_gib: GiB of the fullest device, reserved bytes included.
        peak_memory_rank: pipeline rank of that device.
        memory_gib: its parts by name: weights, gradients, optimizer, activations, reserved (driver,
            runtime, communication buffers), working (what lives for a moment), gathered units.
        exposed_comm_fraction: ``(T_step - T_step without communication) / T_step``.
        hidden_ep_fraction: ``1 - (T_step - T_step without EP communication) / T_ep``, whole step;
            1.0 without EP communication.
        bubble_fraction: time that pipeline ranks wait for one another over the step, mean over
            ranks; the ends of the step (parameters, gradients, optimizer) are not bubble.
        time_seconds: where the step of the slowest rank goes, by name; sums to `step_seconds`.
        calibrated_on: what the prediction rests on, in words.
    """

    step_seconds: float
    tokens_per_second_per_device: float
    mfu: float
    peak_memory_gib: float
    peak_memory_rank: int
    memory_gib: Mapping[str, float]
    exposed_comm_fraction: float
    hidden_ep_fraction: float
    bubble_fraction: float
    time_seconds: Mapping[str, float]
    calibrated_on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A chosen strategy with everything needed to simulate, rehearse, train or export it.

    Attributes:
        model_name: what the user called the model.
        model_config: the Hugging Face configuration fields it was read from.
        cluster: the cluster as a mapping, in the form of a cluster YAML file.
        job: the job.
        strategy: the strategy.
        prediction: what the twin expected when the plan was made.
        version: format version.
    """

    model_name: str
    model_config: Mapping[str, Any]
    cluster: Mapping[str, Any]
    job: JobSpec
    strategy: Strategy
    prediction: Prediction
    version: int = PLAN_VERSION
