"""Why a strategy is invalid, why it does not fit, or where its time goes, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unjam.search.layout import strategy_layout
from unjam.search.rules import explain_invalid, require_job
from unjam.search.space import Fixed, check_values
from unjam.spec.cluster import ClusterSpec
from unjam.spec.model import ModelSpec
from unjam.spec.strategy import JobSpec, ScheduleName, Strategy
from unjam.twin.result import StepResult
from unjam.twin.step import simulate_step


def complete_strategy(job: JobSpec, given: Fixed) -> Strategy:
    """A strategy from the degrees that the user named; the rest is 1, DP follows.

    Raises:
        InputError: an unknown key, or degrees that are not positive integers.
    """
    check_values("--explain", given, also=("layout",))
    degree = {x: int(given.get(x, 1)) for x in ("tp", "pp", "vpp", "ep", "etp", "cp", "mbs")}
    used = degree["tp"] * degree["pp"] * degree["cp"]
    strategy = Strategy(
        tp=degree["tp"],
        pp=degree["pp"],
        vpp=degree["vpp"],
        ep=degree["ep"],
        etp=degree["etp"],
        cp=degree["cp"],
        mbs=degree["mbs"],
        dp=int(given.get("dp", max(job.devices // used, 1))),
        zero=int(given.get("zero", 1)),
        schedule=_natural_schedule(degree),
    )
    named = ("recompute", "dispatcher", "schedule", "layout")
    changes: dict[str, Any] = {x: str(given[x]) for x in named if x in given}
    return replace(strategy, **changes)


def _natural_schedule(degree: dict[str, int]) -> ScheduleName:
    if degree["ep"] > 1 and (degree["pp"] == 1 or degree["vpp"] > 1):
        return "adaptive"
    return "interleaved" if degree["vpp"] > 1 else "1f1b"


def explain(model: ModelSpec, cluster: ClusterSpec, job: JobSpec, given: Fixed) -> str:
    """Say what becomes of one strategy; several lines."""
    require_job(model, cluster, job)
    strategy = complete_strategy(job, given)
    reasons = explain_invalid(model, cluster, job, strategy)
    head = f"{strategy} {strategy.schedule} {strategy.dispatcher} recompute={strategy.recompute}"
    if reasons:
        return "\n".join([f"{head}: invalid", *(f"  - {x}" for x in reasons)])
    if not strategy.layout:
        layout = strategy_layout(model, cluster, job, strategy)
        strategy = replace(strategy, layout=layout)
    result = simulate_step(model, cluster, job, strategy)
    return "\n".join([head, f"  layout {strategy.layout}", *_memory_lines(result), *_time(result)])


def _memory_lines(result: StepResult) -> list[str]:
    p = result.prediction
    fits = p.peak_memory_gib <= result.limit_gib
    verdict = "fits" if fits else "does not fit"
    parts = sorted(p.memory_gib.items(), key=lambda x: -x[1])
    lines = [
        f"  {verdict}: {p.peak_memory_gib:.1f} of {result.limit_gib:.1f} GiB, "
        f"pipeline rank {p.peak_memory_rank}"
    ]
    return lines + [f"    {name:<27}{value:8.2f} GiB" for name, value in parts if value > 0.005]


def _time(result: StepResult) -> list[str]:
    p, s = result.prediction, result.strategy
    hidden = f"; {p.hidden_ep_fraction:.1%} of EP communication hidden"
    lines = [
        f"  {p.step_seconds:.2f} s a step, {p.tokens_per_second_per_device:.1f} tokens/s/device, "
        f"MFU {p.mfu:.1%}{hidden if s.ep * s.etp > 1 else ''}"
    ]
    parts = sorted(p.time_seconds.items(), key=lambda x: -x[1])
    shown = [(name, value) for name, value in parts if abs(value) > 5e-4]
    return lines + [
        f"    {name:<27}{value:8.3f} s  {value / p.step_seconds:6.1%}" for name, value in shown
    ]
