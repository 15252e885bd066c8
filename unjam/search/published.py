"""Published figures beside the twin's predictions, and why the twin would choose otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unjam.search.layout import strategy_layout
from unjam.search.result import PublishedResult
from unjam.search.rules import explain_invalid
from unjam.spec.cluster import ClusterSpec
from unjam.spec.errors import InputError
from unjam.spec.model import ModelSpec
from unjam.spec.published import PublishedRun, published_runs
from unjam.spec.strategy import RECOMPUTE, JobSpec, Strategy
from unjam.twin.result import StepResult
from unjam.twin.step import simulate_step

# Global batches of published runs are often not printed; one sequence per device is their order
# of magnitude for Pangu Ultra MoE and keeps M the same at 4096 and 6144 devices.
SEQUENCES_PER_DEVICE = 1


def compare_published(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, best: Sequence[StepResult]
) -> tuple[tuple[PublishedResult, ...], tuple[str, ...]]:
    """Predict every published run of this model on this cluster.

    Returns:
        The runs beside their predictions, and notes on where the best differs from them.
    """
    runs = published_runs(model.name, cluster.name)
    results = []
    for run in runs:
        simulated, note = _predict(model, cluster, job, run)
        predicted = None
        if simulated:
            predicted = simulated.prediction.tokens_per_second_per_device * run.devices
        results.append(
            PublishedResult(
                run.label, run.devices, run.tokens_per_second, predicted, run.source, note
            )
        )
    notes = _differences(model, cluster, job, runs, best) if best else ()
    return tuple(results), notes


def _differences(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    runs: Sequence[PublishedRun],
    best: Sequence[StepResult],
) -> tuple[str, ...]:
    """For every set of published degrees, run on this job: how far from the best, and why."""
    fastest: dict[str, StepResult] = {}
    cannot: dict[str, str] = {}
    for run in runs:
        given = run.strategy
        if given is None:
            continue
        used = given.tp * given.pp * given.cp
        here = replace(given, dp=max(job.devices // used, 1))
        result, reason = fitting_result(model, cluster, job, here)
        if result is None or result.prediction.peak_memory_gib > result.limit_gib:
            cannot[str(here)] = f"the published strategy {here} cannot run here: {reason}"
            continue
        known = fastest.get(str(here))
        seconds = result.prediction.step_seconds
        if known is None or seconds < known.prediction.step_seconds:
            fastest[str(here)] = result
    kept = (note for degrees, note in cannot.items() if degrees not in fastest)
    return *(_difference(x, best[0]) for x in fastest.values()), *kept


def _predict(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, run: PublishedRun
) -> tuple[StepResult | None, str]:
    if run.strategy is None:
        return None, "the strategy was not published"
    batch = run.global_batch or SEQUENCES_PER_DEVICE * run.devices
    there = replace(
        job, devices=run.devices, seq_len=run.seq_len or job.seq_len, global_batch=batch
    )
    note = f"predicted with global batch {batch}"
    if not run.global_batch:
        note += " (not published)"
    return fitting_result(model, cluster, there, run.strategy, note)


def fitting_result(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, strategy: Strategy, note: str = ""
) -> tuple[StepResult | None, str]:
    """Simulate `strategy` with the fastest recomputation that fits, else say why not."""
    layout = strategy.layout or strategy_layout(model, cluster, job, strategy)
    leanest: StepResult | None = None
    reasons: list[str] = []
    options = RECOMPUTE if strategy.recompute == "none" else (strategy.recompute,)
    for recompute in options:
        candidate = replace(strategy, recompute=recompute, layout=layout)
        broken = explain_invalid(model, cluster, job, candidate)
        if broken:
            reasons = broken
            continue
        try:
            result = simulate_step(model, cluster, job, candidate)
        except InputError as error:
            reasons = [str(error)]
            continue
        if result.prediction.peak_memory_gib <= result.limit_gib:
            return result, _joined(note, f"recompute {recompute}")
        if leanest is None or result.prediction.peak_memory_gib < (
            leanest.prediction.peak_memory_gib
        ):
            leanest = result
    if leanest:
        need = leanest.prediction.peak_memory_gib
        have = leanest.limit_gib
        return leanest, _joined(note, f"by the twin's count it needs {need:.1f} GiB of {have:.1f}")
    return None, reasons[0] if reasons else "not valid"


def _joined(*parts: str) -> str:
    return ", ".join(x for x in parts if x)


def _difference(published: StepResult, best: StepResult) -> str:
    """How far the published strategy is from the best, and what the best saves, in words."""
    there, here = published.prediction, best.prediction
    gain = there.step_seconds / here.step_seconds - 1
    label = f"{published.strategy} ({published.strategy.schedule}, {published.strategy.dispatcher})"
    if gain <= 0.001:
        return f"the published strategy {label} is as fast as the best found"
    names = dict.fromkeys([*there.time_seconds, *here.time_seconds])
    gaps = {x: there.time_seconds.get(x, 0.0) - here.time_seconds.get(x, 0.0) for x in names}
    largest = sorted(gaps.items(), key=lambda x: -x[1])[:2]
    saved = " and ".join(f"{name} ({value:.2f} s less)" for name, value in largest if value > 0)
    theirs, ours = published.strategy.dispatcher, best.strategy.dispatcher
    alike = f"; hold --fix dispatcher={theirs} to compare like with like" if theirs != ours else ""
    faster = f"the best found is {gain:.1%} faster than the published strategy {label}"
    return f"{faster}: {saved}{alike}"
