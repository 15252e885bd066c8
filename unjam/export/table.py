"""Results for the terminal (rich tables) and for programs (JSON values)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from unjam.export.ranking import FLOP_CONVENTION, Published, Ranking, fullest_part, short_name
from unjam.twin.result import StepResult

# Where output is not a terminal, rich assumes 80 columns, which breaks the table into pieces.
PIPE_WIDTH = 160


def console() -> Console:
    """A console for standard output, wide enough for the tables when it is a pipe."""
    plain = Console(highlight=False, markup=False)
    return plain if plain.is_terminal else Console(highlight=False, markup=False, width=PIPE_WIDTH)


def strategy_to_json(result: StepResult) -> dict[str, Any]:
    """One strategy and its prediction as JSON values."""
    p = result.prediction
    return asdict(result.strategy) | {
        "step_seconds": p.step_seconds,
        "tokens_per_second_per_device": p.tokens_per_second_per_device,
        "mfu": p.mfu,
        "peak_memory_gib": p.peak_memory_gib,
        "exposed_comm_fraction": p.exposed_comm_fraction,
        "hidden_ep_fraction": p.hidden_ep_fraction,
        "bubble_fraction": p.bubble_fraction,
    }


def step_to_json(result: StepResult) -> dict[str, Any]:
    """One simulated step as JSON values: `strategy_to_json` and where time and memory go."""
    p = result.prediction
    return strategy_to_json(result) | {
        "time_seconds": dict(p.time_seconds),
        "memory_gib": dict(p.memory_gib),
        "peak_memory_rank": p.peak_memory_rank,
        "memory_limit_gib": result.limit_gib,
        "calibrated_on": p.calibrated_on,
    }


def search_to_json(result: Ranking) -> dict[str, Any]:
    """A search as JSON values: ``strategies`` best first, ``counts``, and what was published."""
    calibrated = result.best[0].prediction.calibrated_on if result.best else ""
    return {
        "strategies": [strategy_to_json(x) for x in result.best],
        "counts": {x: int(result.counts[x]) for x in ("raw", "invalid", "pruned", "simulated")},
        "published": [_published_to_json(x) for x in result.published],
        "notes": list(result.notes),
        "calibrated_on": calibrated,
    }


def _published_to_json(x: Published) -> dict[str, Any]:
    return {
        "label": x.label,
        "devices": x.devices,
        "tokens_per_second": x.tokens_per_second,
        "predicted_tokens_per_second": x.predicted_tokens_per_second,
        "source": x.source,
        "note": x.note,
    }


def strategies_table(results: Sequence[StepResult], title: str) -> Table:
    """Strategies, one a row, in the order given."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("strategy", min_width=18)
    for name in ("recompute", "dispatcher", "schedule"):
        table.add_column(name)
    for name in ("step s", "tokens/s/device", "MFU"):
        table.add_column(name, justify="right")
    table.add_column("GiB: most on, largest part")
    for name in ("exposed comm", "bubble"):
        table.add_column(name, justify="right")
    for x in results:
        table.add_row(*_cells(x))
    return table


def _cells(x: StepResult) -> tuple[str, ...]:
    s, p = x.strategy, x.prediction
    return (
        short_name(s),
        s.recompute,
        s.dispatcher if s.ep > 1 else "-",
        s.schedule,
        f"{p.step_seconds:.3f}",
        f"{p.tokens_per_second_per_device:.1f}",
        f"{p.mfu:.1%}",
        f"{p.peak_memory_gib:.1f}: rank {p.peak_memory_rank}, {fullest_part(x)}",
        f"{p.exposed_comm_fraction:.1%}",
        f"{p.bubble_fraction:.1%}",
    )


def published_table(published: Sequence[Published]) -> Table:
    """Published tokens/s beside the predictions."""
    table = Table(title="Published and predicted", title_justify="left", title_style="bold")
    table.add_column("run")
    for name in ("devices", "published tokens/s", "predicted", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("note")
    for x in published:
        table.add_row(x.label, str(x.devices), f"{x.tokens_per_second:,.0f}", *_ratio(x), x.note)
    return table


def _ratio(x: Published) -> tuple[str, str]:
    if x.predicted_tokens_per_second is None:
        return "-", "-"
    predicted = x.predicted_tokens_per_second
    return f"{predicted:,.0f}", f"{predicted / x.tokens_per_second:.2f}"


def print_search(out: Console, result: Ranking) -> None:
    """Print ranked strategies, the published comparison and what the figures rest on."""
    job = result.job
    title = (
        f"{result.model.name} on {job.devices} x {result.cluster.device.name}, sequence "
        f"{job.seq_len}, global batch {job.global_batch}, {job.dtype}"
    )
    out.print(strategies_table(result.best, title))
    if result.published:
        out.print(published_table(result.published))
    for note in result.notes:
        _say(out, f"note: {note}")
    counts = result.counts
    _say(
        out,
        f"{counts['raw']:,} strategies: {counts['invalid']:,} invalid, {counts['pruned']:,} "
        f"pruned by bounds, {counts['simulated']:,} simulated in {result.seconds:.1f} s",
    )
    _print_basis(out, result.best)


def print_step(out: Console, result: StepResult, title: str) -> None:
    """Print one simulated strategy: its row, where the step goes, and the fullest device."""
    p = result.prediction
    out.print(strategies_table([result], title))
    _say(out, f"layout {result.strategy.layout}")
    time = ", ".join(f"{k} {v:.3f} s" for k, v in p.time_seconds.items() if abs(v) >= 5e-4)
    _say(out, f"time: {time}")
    memory = ", ".join(f"{k} {v:.2f}" for k, v in p.memory_gib.items() if v >= 5e-3)
    _say(out, f"GiB of rank {p.peak_memory_rank}, of {result.limit_gib:.1f}: {memory}")
    if p.peak_memory_gib > result.limit_gib:
        have = result.limit_gib
        _say(out, f"warning: does not fit: {p.peak_memory_gib:.1f} of {have:.1f} usable GiB")
    _print_basis(out, [result])


def _print_basis(out: Console, results: Sequence[StepResult]) -> None:
    _say(out, FLOP_CONVENTION)
    for basis in dict.fromkeys(x.prediction.calibrated_on for x in results):
        _say(out, f"calibrated on: {basis}")


def _say(out: Console, line: str) -> None:
    """Print a line of text as it is: a break in the middle would spoil searching a log."""
    out.print(line, soft_wrap=True)
