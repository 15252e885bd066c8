"""Seconds of every pass and pair of one strategy, from its sub-operations."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unjam.cost.batch import FloatArray
from unjam.cost.compute import BF16_BYTES
from unjam.cost.layer import EP_OPERATIONS, SHARD_OPERATIONS, SUB_OPERATIONS
from unjam.cost.memory import GRADIENT_BYTES
from unjam.cost.network import all_gather_seconds, point_to_point_seconds
from unjam.twin.inputs import StepInputs
from unjam.twin.pair import BACKWARD, FORWARD, all_backwards, all_pairs
from unjam.twin.timeline import Durations

_COLUMN = {x: i for i, x in enumerate(SUB_OPERATIONS)}

# Which sub-operations each column of `unjam.twin.pair`'s table sums.
_TABLE = (
    ("A_f", "shard_A_f"),
    ("E_f", "shard_E_f"),
    ("A_b", "shard_A_b", "recompute_A", "recompute_shard"),
    ("A_w",),
    ("E_b", "shard_E_b", "recompute_E", "recompute_ep"),
    ("E_w",),
    ("D_f",),
    ("C_f",),
    ("D_b",),
    ("C_b",),
)


@dataclass(frozen=True, slots=True)
class Communication:
    """Which communication a simulation counts; the rest takes no time.

    Attributes:
        ep: dispatch and combine.
        others: TP, CP, pipeline sends, gradients and parameters.
    """

    ep: bool = True
    others: bool = True


def operation_table(seconds: FloatArray, communication: Communication) -> FloatArray:
    """Reduce ``[U, len(SUB_OPERATIONS)]`` to the ``[U, 10]`` table that the passes read."""
    kept = seconds.copy()
    if not communication.ep:
        kept[:, [_COLUMN[x] for x in EP_OPERATIONS]] = 0
    if not communication.others:
        kept[:, [_COLUMN[x] for x in SHARD_OPERATIONS]] = 0
    columns = [kept[:, [_COLUMN[x] for x in names]].sum(axis=1) for names in _TABLE]
    return np.ascontiguousarray(np.stack(columns, axis=1))


def pass_durations(inputs: StepInputs, communication: Communication) -> Durations:
    """Durations of all passes; pairs and split backwards exist in overlapping schedules only."""
    strategy = inputs.strategy
    ops = operation_table(inputs.seconds, communication)
    forward = inputs.per_stage(ops[:, FORWARD].sum(axis=1))
    shape = (strategy.pp, strategy.vpp)
    if strategy.overlaps:
        gradient, weight = all_backwards(ops, inputs.units, inputs.offsets)
        slowdown = inputs.cluster.device.overlap_slowdown
        pairs = all_pairs(ops, inputs.units, inputs.offsets, *shape, slowdown)
    else:
        # Without a split the gradient is sent when the whole backward is done.
        gradient = inputs.per_stage(ops[:, BACKWARD].sum(axis=1))
        weight = np.zeros_like(gradient)
        pairs = np.zeros((3, strategy.pp, strategy.vpp, strategy.vpp))
    send, ready = np.zeros_like(forward), np.zeros_like(forward)
    if communication.others:
        send, ready = _send_seconds(inputs), _ready_seconds(inputs)
    total, f_sent, b_sent = pairs
    durations = Durations(forward, gradient, weight, total, f_sent, b_sent, send, ready)
    if strategy.zero > 1 and communication.others:
        return _with_sharded_states(inputs, durations, communication.ep)
    return durations


def _send_seconds(inputs: StepInputs) -> FloatArray:
    """Pipeline send of each stage's activation (or gradient): each TP rank sends its slice."""
    strategy = inputs.strategy
    stages = strategy.pp * strategy.vpp
    if strategy.pp == 1:
        return np.zeros(stages)
    tokens = strategy.mbs * inputs.job.seq_len / (strategy.cp * strategy.tp)
    size = np.array([tokens * inputs.model.hidden * BF16_BYTES])
    stride = np.array([strategy.devices // strategy.pp])
    ranks = np.array([strategy.pp])
    return np.repeat(point_to_point_seconds(inputs.cluster, size, ranks, stride), stages)


def reduction_seconds(inputs: StepInputs, bytes_per_parameter: float) -> FloatArray:
    """Reduce-scatter (or all-gather) of every stage's parameters over its data-parallel ranks.

    Dense parameters over CP * DP ranks, routed experts over EDP ranks; they share the links, so
    they follow one another. ``[P*V]`` seconds.
    """
    strategy = inputs.strategy
    parameters = np.stack([inputs.per_stage(inputs.dense), inputs.per_stage(inputs.routed)])
    ranks = np.array([[strategy.cp * strategy.dp], [strategy.edp]])
    stride = np.array([[strategy.tp], [strategy.etp * strategy.ep]])
    size = parameters * bytes_per_parameter
    return np.asarray(all_gather_seconds(inputs.cluster, size, ranks, stride).sum(axis=0))


def _ready_seconds(inputs: StepInputs) -> FloatArray:
    """When the updated parameters of each stage have been gathered, chunk after chunk."""
    strategy = inputs.strategy
    if strategy.zero not in {1, 2}:
        return np.zeros(strategy.pp * strategy.vpp)
    gather = reduction_seconds(inputs, BF16_BYTES).reshape(strategy.vpp, strategy.pp)
    return np.asarray(np.cumsum(gather, axis=0).ravel())


def _with_sharded_states(inputs: StepInputs, durations: Durations, ep: bool) -> Durations:
    """ZeRO-2 and 3 move gradients (and weights) in every micro-batch.

    They run beside the computation, but on the links that EP communication uses too, so a pass
    lasts at least as long as everything it has to communicate.
    """
    scatter = reduction_seconds(inputs, GRADIENT_BYTES)
    gather = reduction_seconds(inputs, BF16_BYTES) * (inputs.strategy.zero >= 3)
    dispatched = ep * sum(inputs.operation(x) for x in ("D_f", "C_f"))
    returned = ep * sum(inputs.operation(x) for x in ("D_b", "C_b", "recompute_ep"))
    forward_least = gather + dispatched
    backward_least = gather + scatter + returned
    shape = (inputs.strategy.vpp, inputs.strategy.pp)
    f, b = forward_least.reshape(shape).T, backward_least.reshape(shape).T
    pair = np.maximum(durations.pair, f[:, :, None] + b[:, None, :])
    gradient = np.maximum(durations.input_gradient, backward_least - durations.weight_gradient)
    forward = np.maximum(durations.forward, forward_least)
    return replace(durations, forward=forward, input_gradient=gradient, pair=pair)
