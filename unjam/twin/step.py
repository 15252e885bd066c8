"""One training step of one strategy: passes, pipeline, gradient reduction, optimizer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from unjam.cost.attention import train_flops_per_token
from unjam.cost.batch import FloatArray, batch_of
from unjam.cost.compute import BF16_BYTES, peak_flops, vector_seconds
from unjam.cost.layer import EP_OPERATIONS, SHARD_OPERATIONS, SUB_OPERATIONS, LayerContext
from unjam.cost.memory import GRADIENT_BYTES, OPTIMIZER_BYTES, USABLE_SHARE
from unjam.cost.network import all_reduce_seconds
from unjam.schedule.in_flight import in_flight
from unjam.spec.cluster import ClusterSpec
from unjam.spec.layout import parse_layout
from unjam.spec.model import ModelSpec
from unjam.spec.plan import Prediction
from unjam.spec.strategy import JobSpec, Strategy
from unjam.twin.engine import simulate, simulate_seconds
from unjam.twin.inputs import StepInputs, step_inputs
from unjam.twin.memory import GIB, RankMemory, rank_memory, stage_bytes
from unjam.twin.passes import Communication, pass_durations, reduction_seconds
from unjam.twin.result import StepResult
from unjam.twin.timeline import Timeline
from unjam.twin.units import FIRST_LAYER, unit_costs

ALL = Communication()


def simulate_step(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, strategy: Strategy
) -> StepResult:
    """Simulate one step of `strategy`, which must be valid for the model and have a layout.

    Raises:
        InputError: the layout does not parse, or the schedule cannot be built.
    """
    batch = batch_of([strategy])
    costs = unit_costs(LayerContext(model, cluster, job, batch))
    layout = parse_layout(strategy.layout)
    return step_result(step_inputs(model, cluster, job, strategy, batch, costs, layout))


def step_seconds(inputs: StepInputs, communication: Communication = ALL) -> float:
    """Seconds of one step: pipeline, the gradient reduction that outlasts it, and optimizer."""
    durations = pass_durations(inputs, communication)
    _, _, last_end = simulate_seconds(inputs.schedule, durations)
    reduced = _reduced(inputs, last_end, communication)
    return float(reduced.max() + optimizer_seconds(inputs).max())


def _reduced(inputs: StepInputs, last_end: FloatArray, communication: Communication) -> FloatArray:
    """When each rank's gradients are reduced, ``[P]``.

    A chunk's reduce-scatter starts after its last backward and follows the rank's other chunks on
    the same links; what the pipeline still computes meanwhile hides it.
    """
    strategy = inputs.strategy
    ends = last_end.copy()
    done = np.zeros(strategy.pp)
    scatter = np.zeros((strategy.vpp, strategy.pp))
    if communication.others and strategy.zero <= 1:
        # ZeRO-0's all-reduce also brings back the reduced gradient.
        size = GRADIENT_BYTES * (1 if strategy.zero == 1 else 2)
        scatter = reduction_seconds(inputs, size).reshape(strategy.vpp, strategy.pp)
    for chunk in np.argsort(ends.mean(axis=0)):
        done = np.maximum(done, ends[:, chunk]) + scatter[chunk]
    done = np.maximum(done, ends.max(axis=1))
    if communication.others:
        done[[0, -1]] = max(done[0], done[-1]) + _copies_seconds(inputs)
    return np.asarray(done)


def _copies_seconds(inputs: StepInputs) -> float:
    """All-reduce of the embedding's gradient between the first and the last rank, if both use it.

    A tied head and MTP modules do. The exchange waits for both ranks.
    """
    strategy, model = inputs.strategy, inputs.model
    if strategy.pp == 1 or not (model.tied or model.mtp):
        return 0.0
    size = np.array([model.embedding_params / strategy.tp * GRADIENT_BYTES])
    apart = np.array([strategy.devices // strategy.pp * (strategy.pp - 1)])
    return float(all_reduce_seconds(inputs.cluster, size, np.array([2]), apart)[0])


def optimizer_seconds(inputs: StepInputs) -> FloatArray:
    """AdamW on each rank's share, ``[P]``: reads gradient and states, writes states and weight."""
    strategy = inputs.strategy
    shards = (strategy.cp * strategy.dp, strategy.edp) if strategy.zero else (1, 1)
    dense = inputs.per_rank(inputs.per_stage(inputs.dense)) / shards[0]
    routed = inputs.per_rank(inputs.per_stage(inputs.routed)) / shards[1]
    moved_bytes = (dense + routed) * (GRADIENT_BYTES + 2 * OPTIMIZER_BYTES + BF16_BYTES)
    return vector_seconds(inputs.cluster.device, moved_bytes, kernels=100)


def step_result(inputs: StepInputs) -> StepResult:
    """Simulate one step in full: timeline, memory, and where the time goes."""
    durations = pass_durations(inputs, ALL)
    timeline = simulate(inputs.schedule, durations)
    memory = rank_memory(inputs)
    seconds = step_seconds(inputs)
    curves = in_flight(inputs.schedule, stage_bytes(inputs))
    named = {x: inputs.operation(x) for x in SUB_OPERATIONS}
    optimizer = float(optimizer_seconds(inputs).max())
    exposed = max(seconds - optimizer - timeline.seconds, 0.0)
    return StepResult(
        strategy=inputs.strategy,
        prediction=_prediction(inputs, seconds, timeline, memory),
        timeline=timeline,
        static_gib={**memory.static, "working": memory.working},
        activation_gib=tuple(x / GIB for x in curves),
        limit_gib=USABLE_SHARE * inputs.cluster.device.memory_bytes / GIB,
        stage_seconds=named,
        tail_seconds={"gradient reduce-scatter": exposed, "optimizer": optimizer},
    )


def _prediction(
    inputs: StepInputs, seconds: float, timeline: Timeline, memory: RankMemory
) -> Prediction:
    job, device = inputs.job, inputs.cluster.device
    rate = job.global_batch * job.seq_len / seconds / job.devices
    flops = train_flops_per_token(inputs.model, job.seq_len)
    silent = step_seconds(inputs, Communication(ep=False, others=False))
    fullest = int(memory.peak.argmax())
    idle = timeline.seconds - timeline.busy_seconds() - _gathered(inputs, timeline)
    return Prediction(
        step_seconds=seconds,
        tokens_per_second_per_device=rate,
        mfu=rate * flops / peak_flops(device, job.dtype),
        peak_memory_gib=float(memory.peak[fullest]),
        peak_memory_rank=fullest,
        memory_gib=memory.parts(fullest),
        exposed_comm_fraction=max(1 - silent / seconds, 0.0),
        hidden_ep_fraction=_hidden_ep(inputs, seconds),
        bubble_fraction=float(np.maximum(idle, 0.0).mean() / seconds),
        time_seconds=_time_by_name(inputs, seconds, timeline),
        calibrated_on=inputs.cluster.calibrated_on,
    )


def _ep_seconds(inputs: StepInputs) -> FloatArray:
    """EP communication of each rank over the step, hidden or not, ``[P]``."""
    stage = np.sum([inputs.operation(x) for x in EP_OPERATIONS], axis=0)
    return inputs.schedule.micro_batches * inputs.per_rank(stage)


def _hidden_ep(inputs: StepInputs, seconds: float) -> float:
    """``1 - (T - T without EP communication) / T_ep``, over the whole step."""
    total = float(_ep_seconds(inputs).max())
    if total <= 0:
        return 1.0
    without = step_seconds(inputs, Communication(ep=False))
    return float(min(max(1 - (seconds - without) / total, 0.0), 1.0))


def _gathered(inputs: StepInputs, timeline: Timeline) -> FloatArray:
    """Seconds that each rank waits for its parameters before its first slot, ``[P]``."""
    first = np.array([x[0] if len(x) else 0.0 for x in timeline.start])
    ready: FloatArray = pass_durations(inputs, ALL).ready[: inputs.strategy.pp]
    return np.asarray(np.minimum(first, ready))


def _time_by_name(inputs: StepInputs, seconds: float, timeline: Timeline) -> dict[str, float]:
    """Where the step of the busiest rank goes; the parts sum to `seconds`."""
    busy = timeline.busy_seconds()
    rank = int(busy.argmax())
    parts = _computation(inputs, rank)
    parts |= _exposed(inputs, rank, float(busy[rank]) - sum(parts.values()))
    optimizer = float(optimizer_seconds(inputs).max())
    gathered = float(_gathered(inputs, timeline)[rank])
    parts["parameter all-gather"] = gathered
    parts["pipeline bubble"] = max(timeline.seconds - float(busy[rank]) - gathered, 0.0)
    parts["gradient reduce-scatter"] = max(seconds - optimizer - timeline.seconds, 0.0)
    parts["optimizer"] = optimizer
    return parts


def _computation(inputs: StepInputs, rank: int) -> dict[str, float]:
    """Seconds that one rank computes, and what TP and CP add to it, over the step."""
    is_layer = np.arange(len(inputs.seconds)) >= FIRST_LAYER

    def total(names: tuple[str, ...], units: npt.NDArray[np.bool_]) -> float:
        columns = [SUB_OPERATIONS.index(x) for x in names]
        values = np.where(units, inputs.seconds[:, columns].sum(axis=1), 0.0)
        stages = inputs.per_rank(inputs.per_stage(values))
        return float(inputs.schedule.micro_batches * stages[rank])

    attention, experts = ("A_f", "A_b", "A_w"), ("E_f", "E_b", "E_w")
    again = ("recompute_A", "recompute_E")
    return {
        "attention": total(attention, is_layer),
        "experts and FFN": total(experts, is_layer),
        "head and embedding": total(attention, ~is_layer),
        "recomputation": total(again, is_layer),
        "TP and CP communication": total(SHARD_OPERATIONS, is_layer | ~is_layer),
    }


def _exposed(inputs: StepInputs, rank: int, exposed: float) -> dict[str, float]:
    """Split one rank's exposed communication into that of ZeRO and that of EP."""
    if inputs.strategy.zero <= 1:
        return {"exposed EP communication": exposed}
    # What is exposed even where EP communication takes no time moves weights and gradients.
    timed = [simulate_seconds(inputs.schedule, pass_durations(inputs, x))[1][rank]
             for x in (ALL, Communication(ep=False))]  # fmt: skip
    sharded = max(exposed - float(timed[0] - timed[1]), 0.0)
    return {
        "exposed ZeRO communication": sharded,
        "exposed EP communication": exposed - sharded,
    }
