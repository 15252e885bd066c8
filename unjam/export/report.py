"""The report of a search as one HTML file that needs nothing else: no network, no library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from unjam import __version__
from unjam.export.ranking import FLOP_CONVENTION, Ranking, fullest_part, short_name
from unjam.export.report_charts import (
    Block,
    blocks_of,
    colours,
    legend,
    memory_chart,
    stacked_bar,
    timeline_chart,
)
from unjam.schedule.ir import Kind
from unjam.twin.result import StepResult

_SCHEDULE_NAMES = {
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B (VPP)",
    "adaptive": "Adaptive Pipe (VPP with paired forward and backward)",
}
_DISPATCHER_NAMES = {
    "flat": "flat All-to-All",
    "allgather": "hierarchical all-gather",
    "dedup": "hierarchical, de-duplicated All-to-All",
}
# Text cells sort by their words, number cells by the value in data-v.
Cell = str | tuple[float, str]


def render_report(result: Ranking) -> str:
    """The whole report; `result.best` has at least one strategy."""
    best = result.best[0]
    rows = blocks_of(best.timeline)
    page = Template(files("unjam.export").joinpath("report.html").read_text("utf-8"))
    return page.substitute(
        title=escape(f"{result.model.name} on {result.job.devices} x {result.cluster.name}"),
        job=escape(_job_line(result)),
        cards=_cards(result, best),
        words="".join(f"<p>{escape(x)}</p>" for x in words(result)),
        published=_published(result),
        notes=_list(result.notes),
        strategies=_strategies(result.best),
        best=escape(short_name(best.strategy)),
        passes=_pass_legend(rows),
        timeline=timeline_chart(best.timeline, rows),
        slots=_script_json([[[round(b.start, 6), round(b.end, 6), b.label] for b in row]
                            for row in rows]),
        memory=memory_chart(best),
        memory_parts=_memory_parts(best),
        time=_time(result.best),
        counts=_counts(result),
        basis=_list(_basis(result)),
        version=escape(__version__),
    )  # fmt: skip


def words(result: Ranking) -> list[str]:
    """What was found and why it is the best, as sentences."""
    best, job = result.best[0], result.job
    s, p = best.strategy, best.prediction
    rate = p.tokens_per_second_per_device * job.devices
    hidden = f"{p.hidden_ep_fraction:.1%} of expert-parallel communication is hidden. "
    lines = [
        f"The best strategy found is {short_name(s)} with {_SCHEDULE_NAMES[s.schedule]}"
        f"{_dispatch_words(best)} and recomputation “{s.recompute}”. One step of "
        f"{job.global_batch} sequences takes {p.step_seconds:.2f} s, which is {rate:,.0f} tokens/s "
        f"on {job.devices} devices. {hidden if s.ep > 1 else ''}"
        f"Pipeline ranks idle {p.bubble_fraction:.1%} of the step. "
        f"The fullest device, on pipeline rank {p.peak_memory_rank}, holds "
        f"{p.peak_memory_gib:.1f} of {best.limit_gib:.1f} GiB, most of it {fullest_part(best)}."
    ]
    if len(result.best) > 1:
        lines.append(_runner_up(best, result.best[1]))
    return lines


def _dispatch_words(result: StepResult) -> str:
    s = result.strategy
    return f", tokens dispatched by {_DISPATCHER_NAMES[s.dispatcher]}" if s.ep > 1 else ""


def _runner_up(best: StepResult, second: StepResult) -> str:
    """How the second differs, by the parts of the step that grow most."""
    here, there = best.prediction, second.prediction
    slower = there.step_seconds / here.step_seconds - 1
    grown = {k: v - here.time_seconds.get(k, 0.0) for k, v in there.time_seconds.items()}
    most = sorted(grown.items(), key=lambda x: -x[1])[:2]
    costs = [f"{value:.2f} s more on {name}" for name, value in most if value > 0.005]
    why = f": it spends {' and '.join(costs)}" if costs else ""
    return f"Next comes {short_name(second.strategy)}, {slower:.1%} slower{why}."


def _job_line(result: Ranking) -> str:
    job, device = result.job, result.cluster.device
    p = result.model.params
    return (
        f"{p.total_params / 1e9:.1f} B parameters, {p.activated_params / 1e9:.1f} B activated · "
        f"{device.name} · sequence {job.seq_len} · global batch {job.global_batch} · {job.dtype} · "
        f"expert imbalance {job.imbalance:g}"
    )


def _cards(result: Ranking, best: StepResult) -> str:
    p = best.prediction
    rate = p.tokens_per_second_per_device
    cards = (
        ("step", f"{p.step_seconds:.2f} s", f"{result.job.global_batch} sequences"),
        ("tokens/s", _big(rate * result.job.devices), f"{rate:.1f} per device"),
        ("MFU", f"{p.mfu:.1%}", "causal FLOPs"),
        ("fullest device", f"{p.peak_memory_gib:.1f} GiB", f"of {best.limit_gib:.1f} GiB"),
        ("EP hidden", f"{p.hidden_ep_fraction:.1%}", "whole step"),
        ("exposed comm", f"{p.exposed_comm_fraction:.1%}", "of the step, any kind"),
        ("bubble", f"{p.bubble_fraction:.1%}", "mean over ranks"),
    )
    return "".join(
        f"<div><small>{a}</small><strong>{b}</strong><small>{c}</small></div>" for a, b, c in cards
    )


def _big(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.1f} K"


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]], kind: str = "") -> str:
    cells = "".join(f"<th>{escape(x)}</th>" for x in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="wide"><table class="{kind}"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    value, text = cell
    return f'<td class="n" data-v="{value:.6g}">{escape(text)}</td>'


def _strategies(best: Sequence[StepResult]) -> str:
    head = (
        "#", "strategy", "schedule", "recompute", "dispatcher", "step s", "tokens/s/device",
        "MFU", "GiB", "of what", "exposed comm", "EP hidden", "bubble",
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for i, x in enumerate(best, 1):
        s, p = x.strategy, x.prediction
        shares = (p.exposed_comm_fraction, p.hidden_ep_fraction, p.bubble_fraction)
        rows.append([
            (i, str(i)), short_name(s), s.schedule, s.recompute,
            s.dispatcher if s.ep > 1 else "–",
            (p.step_seconds, f"{p.step_seconds:.3f}"),
            (p.tokens_per_second_per_device, f"{p.tokens_per_second_per_device:.1f}"),
            (p.mfu, f"{p.mfu:.1%}"),
            (p.peak_memory_gib, f"{p.peak_memory_gib:.1f}"),
            f"rank {p.peak_memory_rank}, {fullest_part(x)}",
            *((v, f"{v:.1%}") for v in shares),
        ])  # fmt: skip
    layout = escape(best[0].strategy.layout)
    note = f'<p class="dim">Layers of each stage of the best: <code>{layout}</code></p>'
    return _table(head, rows, "sortable") + note


def _published(result: Ranking) -> str:
    if not result.published:
        return '<p class="dim">No published figure for this model on this cluster.</p>'
    rows: list[list[Cell]] = []
    for x in result.published:
        predicted, ratio = "–", "–"
        rate = x.predicted_tokens_per_second or 0.0
        if x.predicted_tokens_per_second is not None:
            predicted, ratio = f"{rate:,.0f}", f"{rate / x.tokens_per_second:.2f}"
        rows.append([
            x.label, (x.devices, str(x.devices)),
            (x.tokens_per_second, f"{x.tokens_per_second:,.0f}"),
            (rate, predicted), (rate, ratio),
            x.note, x.source,
        ])  # fmt: skip
    head = ("run", "devices", "published tokens/s", "predicted", "ratio", "note", "source")
    return _table(head, rows)


def _pass_legend(rows: Sequence[Sequence[Block]]) -> str:
    kinds = {b.slot[0] for row in rows for b in row}
    names = {
        "F": (Kind.F, "forward"),
        "B": (Kind.B, "backward"),
        "I": (Kind.I, "input gradient"),
        "W": (Kind.W, "weight gradient"),
    }
    shown = {k: x for k, (kind, x) in names.items() if kind in kinds}
    if Kind.FB in kinds:
        shown |= {"F": "forward", "B": "backward"}
    items = [f'<li><b class="k{k}"></b>{x}</li>' for k, x in shown.items()]
    if Kind.FB in kinds:
        items.append('<li><b class="kFB"></b>pair: forward above, backward below</li>')
    return f'<ul class="legend">{"".join(items)}<li>later chunks are fainter</li></ul>'


def _memory_parts(best: StepResult) -> str:
    p = best.prediction
    parts = dict(sorted(p.memory_gib.items(), key=lambda x: -x[1]))
    colour = colours(parts)
    whole = max(best.limit_gib, p.peak_memory_gib)
    rows = "".join(
        f'<tr><td><b style="background:{colour[k]}"></b>{escape(k)}</td>'
        f'<td class="n">{v:.2f}</td><td class="n">{v / whole:.1%}</td></tr>'
        for k, v in parts.items()
        if v >= 0.005
    )
    free = best.limit_gib - p.peak_memory_gib
    return (
        f"<h3>Rank {p.peak_memory_rank} at its peak</h3>"
        f"{stacked_bar(parts, whole, 'GiB', colour)}"
        f'<table class="parts"><tbody>{rows}<tr class="sum"><td>together</td>'
        f'<td class="n">{p.peak_memory_gib:.2f}</td><td class="n">{p.peak_memory_gib / whole:.1%}'
        f'</td></tr><tr><td>free</td><td class="n">{free:.2f}</td><td class="n"></td></tr>'
        "</tbody></table>"
    )


def _time(best: Sequence[StepResult]) -> str:
    colour = colours(name for x in best for name in x.prediction.time_seconds)
    longest = max(x.prediction.step_seconds for x in best)
    rows = "".join(
        f'<div class="where"><span>{escape(short_name(x.strategy))}</span>'
        f"{stacked_bar(x.prediction.time_seconds, longest, 's', colour)}"
        f"<span>{x.prediction.step_seconds:.2f} s</span></div>"
        for x in best
    )
    return legend(colour) + rows


def _counts(result: Ranking) -> str:
    c, raw = result.counts, max(result.counts["raw"], 1)
    rows = [("combinations", c["raw"], 0), ("invalid", c["invalid"], 0)]
    rows += [(k, v, 1) for k, v in _largest(result.invalid_by_reason)]
    rows += [("pruned by a lower bound", c["pruned"], 0)]
    rows += [(k, v, 1) for k, v in _largest(result.pruned_by_bound)]
    rows += [("simulated", c["simulated"], 0)]
    body = "".join(
        f'<tr class="d{depth}"><td>{escape(name)}</td><td class="n">{value:,}</td>'
        f'<td class="share"><i style="width:{100 * value / raw:.2f}%"></i></td></tr>'
        for name, value, depth in rows
    )
    return f'<table class="counts"><tbody>{body}</tbody></table>'


def _largest(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda x: -x[1])


def _basis(result: Ranking) -> list[str]:
    p = result.best[0].prediction
    return [
        f"Calibrated on: {p.calibrated_on}.",
        f"{FLOP_CONVENTION}.",
        "EP hidden: 1 - (step - step without EP communication) / EP communication, warm-up and "
        "cool-down included.",
        "Invalid strategies are counted under the first rule that they break; pruned ones cannot "
        "be faster than the last strategy listed, or cannot fit.",
        f"The search took {result.seconds:.1f} s.",
    ]


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(x)}</li>" for x in lines)
    return f"<ul>{items}</ul>" if items else ""


def _script_json(value: object) -> str:
    """JSON that cannot close the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
