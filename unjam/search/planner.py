"""The search: bound every valid strategy, simulate the promising ones, keep the best.

Strategies are simulated in the order of their lower bounds, until the next bound is no better
than the last of the best that are asked for. So no strategy that was left out can be better.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unjam.cost.batch import Batch, FloatArray, IntArray
from unjam.cost.layer import LayerContext
from unjam.cost.memory import USABLE_SHARE
from unjam.schedule.registry import build_schedule
from unjam.search.bounds import group_bounds
from unjam.search.layout import head_quarters, stage_layout
from unjam.search.published import compare_published
from unjam.search.result import SearchResult
from unjam.search.rules import explain_invalid, require_job
from unjam.search.rules import rules as rules_of
from unjam.search.space import Fixed, enumerate_space, nearest_invalid
from unjam.spec.cluster import ClusterSpec
from unjam.spec.clusters import cluster_to_mapping
from unjam.spec.errors import InputError
from unjam.spec.layout import Layout, format_layout
from unjam.spec.model import ModelSpec
from unjam.spec.plan import Plan
from unjam.spec.strategy import SCHEDULES, JobSpec
from unjam.twin.inputs import StepInputs, step_inputs
from unjam.twin.memory import GIB, rank_memory
from unjam.twin.step import step_result, step_seconds
from unjam.twin.units import UnitCosts, unit_costs

Progress = Callable[[float], None]

_COSTED_BY = ("tp", "cp", "mbs", "ep", "etp", "dispatcher", "recompute")
_SHAPED_BY = ("tp", "pp", "vpp", "ep", "etp", "cp", "dp", "mbs")


@dataclass(frozen=True)
class Candidates:
    """Valid strategies with their costs and bounds.

    Attributes:
        batch: the strategies, N of them.
        costs: unit costs of the M distinct cost keys.
        key: which of the M each strategy has, ``[N]``.
        layouts: distinct layouts.
        layout: which of them each strategy has, ``[N]``.
        seconds: lower bound of the step, ``[N]``.
        bytes: lower bound of the fullest device, ``[N]``.
    """

    batch: Batch
    costs: UnitCosts
    key: IntArray
    layouts: tuple[Layout, ...]
    layout: IntArray
    seconds: FloatArray
    bytes: FloatArray


@dataclass
class Found:
    """The best strategy of every parallel shape simulated so far, and how the search went."""

    best: dict[tuple[int, ...], tuple[float, StepInputs]] = field(default_factory=dict)
    simulated: int = 0
    misfits: int = 0
    smallest_bytes: float = np.inf

    def limit(self, top: int) -> float:
        """Step seconds that a new shape has to beat."""
        times = heapq.nsmallest(top, (x for x, _ in self.best.values()))
        return times[-1] if len(times) == top else np.inf


def plan_job(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    *,
    top: int = 10,
    fixed: Fixed | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the fastest strategies that fit.

    Args:
        model: the model.
        cluster: the cluster.
        job: the job.
        top: how many parallel shapes to return; options are already the best of each shape.
        fixed: degrees and options to hold, e.g. ``{"tp": 8, "dispatcher": "dedup"}``.
        progress: called with the share done, 0 to 1.

    Raises:
        InputError: no strategy is valid, or none fits; the message says what would.
    """
    begin = time.perf_counter()
    report = progress or (lambda share: None)
    fixed = fixed or {}
    require_job(model, cluster, job)
    space = enumerate_space(model, cluster, job, rules_of(model, cluster, job), fixed)
    if not len(space.valid):
        raise InputError(_why_nothing_is_valid(model, cluster, job, fixed))
    report(0.1)
    candidates = bound_candidates(model, cluster, job, space.valid)
    report(0.3)
    found = _best_first(model, cluster, job, candidates, top, report)
    if not found.best:
        raise InputError(_why_nothing_fits(cluster, job, candidates, found))
    ranked = heapq.nsmallest(top, found.best.values(), key=lambda x: x[0])
    best = tuple(step_result(inputs) for _, inputs in ranked)
    report(1.0)
    pruned = len(space.valid) - found.simulated
    over = (
        int((candidates.bytes > USABLE_SHARE * cluster.device.memory_bytes).sum()) + found.misfits
    )
    invalid = space.raw - len(space.valid)
    counts = {"raw": space.raw, "invalid": invalid, "pruned": pruned, "simulated": found.simulated}
    published, notes = compare_published(model, cluster, job, best)
    return SearchResult(
        model=model,
        cluster=cluster,
        job=job,
        best=best,
        counts=counts,
        invalid_by_reason=space.invalid_by_reason,
        pruned_by_bound={"memory": over, "time": pruned - over},
        seconds=time.perf_counter() - begin,
        published=published,
        notes=notes,
    )


def bound_candidates(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, batch: Batch
) -> Candidates:
    """Cost the distinct keys, choose layouts, and bound every strategy."""
    alone = (batch.pp == 1).astype(np.int64)  # a lone stage holds one copy of the embedding
    code = _row_codes([*(getattr(batch, x) for x in _COSTED_BY), alone])
    _, first, key = np.unique(code, return_index=True, return_inverse=True)
    costs = unit_costs(LayerContext(model, cluster, job, batch.take(first)))
    ratios = head_quarters(costs, model)[key]
    micro_batches = job.global_batch // (batch.dp * batch.mbs)
    columns = [batch.pp, batch.vpp, batch.schedule, micro_batches, ratios]
    _, leader, member = np.unique(_row_codes(columns), return_index=True, return_inverse=True)
    rows = np.stack(columns, axis=1)[leader]
    order = np.argsort(member, kind="stable")
    edges = np.searchsorted(member[order], np.arange(len(rows) + 1))
    seconds, size = np.empty(len(batch)), np.empty(len(batch))
    layout = np.empty(len(batch), dtype=np.int64)
    index: dict[Layout, int] = {}
    for g, (pp, vpp, schedule, m, ratio) in enumerate(rows.tolist()):
        inside = order[edges[g] : edges[g + 1]]
        chosen = stage_layout(len(model.layers), len(model.mtp), pp, vpp, ratio)
        # No warm-up is longer than three groups, and a bound needs no more of the schedule.
        orders = build_schedule(SCHEDULES[schedule], pp, vpp, min(m, 3 * pp))
        part = costs.take(key[inside])
        bounds = group_bounds(cluster, job, batch.take(inside), part, orders, m, chosen)
        seconds[inside], size[inside] = bounds.seconds, bounds.bytes
        layout[inside] = index.setdefault(chosen, len(index))
    return Candidates(batch, costs, key, tuple(index), layout, seconds, size)


def _row_codes(columns: list[IntArray]) -> IntArray:
    """One integer per row of non-negative columns, equal only for equal rows."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        code = code * (int(column.max()) + 1) + column
    return code


def _best_first(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    candidates: Candidates,
    top: int,
    report: Progress,
) -> Found:
    found = Found()
    limit_bytes = USABLE_SHARE * cluster.device.memory_bytes
    fits = np.flatnonzero(candidates.bytes <= limit_bytes)
    order = fits[np.argsort(candidates.seconds[fits], kind="stable")]
    shapes = np.stack([getattr(candidates.batch, x) for x in _SHAPED_BY], axis=1)
    bound = found.limit(top)
    for done, i in enumerate(order.tolist()):
        if candidates.seconds[i] >= bound:
            break
        shape = tuple(shapes[i].tolist())
        known = found.best.get(shape)
        if known and candidates.seconds[i] >= known[0]:
            continue
        inputs = _inputs_of(model, cluster, job, candidates, i)
        peak = float(rank_memory(inputs).peak.max()) * GIB
        found.smallest_bytes = min(found.smallest_bytes, peak)
        if peak > limit_bytes:
            found.misfits += 1
            continue
        seconds = step_seconds(inputs)
        found.simulated += 1
        if known is None or seconds < known[0]:
            found.best[shape] = (seconds, inputs)
            if seconds < bound:
                bound = found.limit(top)
        if done % 64 == 0:
            report(0.3 + 0.6 * (1 - np.exp(-found.simulated / 500)))
    return found


def _inputs_of(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, candidates: Candidates, i: int
) -> StepInputs:
    layout = candidates.layouts[candidates.layout[i]]
    one = np.array([i])
    batch = candidates.batch.take(one)
    costs = candidates.costs.take(candidates.key[one])
    strategy = batch.strategy(0, format_layout(layout))
    return step_inputs(model, cluster, job, strategy, batch, costs, layout)


def _why_nothing_is_valid(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, fixed: Fixed
) -> str:
    nothing = (
        f"no valid strategy for {job.devices} devices, sequence {job.seq_len}, global batch "
        f"{job.global_batch}"
    )
    nearest = nearest_invalid(model, cluster, job, rules_of(model, cluster, job), fixed)
    if nearest is None:
        return f"{nothing}: no degrees give DP {fixed['dp']}; free what --fix holds"
    nearest = replace(nearest, dp=max(nearest.dp, 1))
    reasons = "; ".join(explain_invalid(model, cluster, job, nearest))
    return f"{nothing}; the nearest, {nearest} ({nearest.schedule}): {reasons}"


def _why_nothing_fits(
    cluster: ClusterSpec, job: JobSpec, candidates: Candidates, found: Found
) -> str:
    # Every bound below the limit was followed up, so where there was one, its strategy says more.
    simulated = np.isfinite(found.smallest_bytes)
    need = found.smallest_bytes if simulated else float(candidates.bytes.min())
    have = USABLE_SHARE * cluster.device.memory_bytes
    # Static bytes shrink at best in proportion to the devices.
    own = max(have - cluster.device.reserved_bytes, 1.0)
    factor = max((need - cluster.device.reserved_bytes) / own, 1.0)
    enough = 1 << int(np.ceil(np.log2(job.devices * factor)))
    return (
        f"--devices {job.devices}: too small for this model: the leanest strategy needs "
        f"{need / GIB:.1f} GiB on a device with {have / GIB:.1f} usable GiB; "
        f"about {max(enough, 2 * job.devices)} devices would fit"
    )


def make_plan(model_name: str, model_config: Mapping[str, Any], result: SearchResult) -> Plan:
    """The best strategy of a search as a plan."""
    best = result.best[0]
    return Plan(
        model_name=model_name,
        model_config=dict(model_config),
        cluster=cluster_to_mapping(result.cluster),
        job=result.job,
        strategy=best.strategy,
        prediction=best.prediction,
    )
