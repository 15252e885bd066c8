"""Everything that one simulated step needs, as plain arrays of one strategy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.cost.batch import Batch, FloatArray, IntArray
from unjam.cost.layer import SUB_OPERATIONS
from unjam.schedule.ir import Schedule
from unjam.schedule.registry import build_schedule
from unjam.spec.cluster import ClusterSpec
from unjam.spec.layout import Layout
from unjam.spec.model import ModelSpec
from unjam.spec.strategy import JobSpec, Strategy
from unjam.twin.units import UnitCosts, stage_units


@dataclass(frozen=True)
class StepInputs:
    """One strategy, its costs per unit, and its stages.

    Attributes:
        model: the model.
        cluster: the cluster.
        job: the job.
        strategy: the strategy with its layout.
        batch: the same as a batch of one.
        schedule: pass orders.
        seconds: ``[U, len(SUB_OPERATIONS)]``.
        kept: bytes a micro-batch leaves, ``[U]``.
        working: bytes held for a moment, ``[U]``.
        dense: parameters outside routed experts, ``[U]``.
        routed: parameters of routed experts, ``[U]``.
        units: units of all stages.
        offsets: stage s has ``units[offsets[s]:offsets[s+1]]``.
    """

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    strategy: Strategy
    batch: Batch
    schedule: Schedule
    seconds: FloatArray
    kept: FloatArray
    working: FloatArray
    dense: FloatArray
    routed: FloatArray
    units: IntArray
    offsets: IntArray

    def per_stage(self, values: FloatArray) -> FloatArray:
        """Sum of `values` per unit over the units of each stage, ``[P*V]``."""
        running = np.concatenate([[0.0], np.cumsum(values[self.units])])
        return np.asarray(np.diff(running[self.offsets]))

    def per_rank(self, stage_values: FloatArray) -> FloatArray:
        """Sum over the chunks of each pipeline rank, ``[P]``."""
        return np.asarray(stage_values.reshape(self.strategy.vpp, self.strategy.pp).sum(axis=0))

    def operation(self, name: str) -> FloatArray:
        """Seconds of one sub-operation per stage and micro-batch, ``[P*V]``."""
        return self.per_stage(self.seconds[:, SUB_OPERATIONS.index(name)])


def step_inputs(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    strategy: Strategy,
    batch: Batch,
    costs: UnitCosts,
    layout: Layout,
) -> StepInputs:
    """Gather the inputs of one strategy.

    Args:
        model: the model.
        cluster: the cluster.
        job: the job.
        strategy: the strategy.
        batch: the same as a batch of one.
        costs: unit costs of that batch.
        layout: its stages as tuples of E, t, m, L.
    """
    units, offsets = stage_units(costs.kinds, layout)
    micro_batches = strategy.micro_batches(job.global_batch)
    schedule = build_schedule(strategy.schedule, strategy.pp, strategy.vpp, micro_batches)
    return StepInputs(
        model=model,
        cluster=cluster,
        job=job,
        strategy=strategy,
        batch=batch,
        schedule=schedule,
        seconds=costs.seconds[..., 0],
        kept=costs.kept[..., 0],
        working=costs.working[..., 0],
        dense=costs.dense[..., 0],
        routed=costs.routed[..., 0],
        units=units,
        offsets=offsets,
    )
