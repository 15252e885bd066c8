"""Charts of the report: inline SVG whose axes are HTML, so that stretching never bends a label.

Every chart lives in a plot box; positions are percentages of the box or SVG units of
``WIDTH x height``, and the SVG stretches to the box.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from unjam.cost.batch import FloatArray
from unjam.export.trace import slot_name
from unjam.schedule.ir import Kind
from unjam.twin.result import StepResult
from unjam.twin.timeline import Timeline

WIDTH = 10_000
ROW = 20
# Above this the browser slows down and a slot is thinner than a pixel: neighbours are merged.
MAX_SLOTS = 20_000
MEMORY_BINS = 1_000

_COLOURS = {
    "attention": "#3b6fd4", "experts and FFN": "#6aa2f0", "recomputation": "#a9c7f7",
    "TP and CP communication": "#dd9f2d", "exposed EP communication": "#e4572e",
    "exposed ZeRO communication": "#c2569b", "head and embedding": "#2c4f9e",
    "parameter all-gather": "#f0c56b", "pipeline bubble": "#aab1bd",
    "gradient reduce-scatter": "#b5713a", "optimizer": "#8a63d2",
    "activations": "#e4572e", "weights": "#3b6fd4", "gradients": "#6aa2f0",
    "logits": "#dd9f2d", "reserved": "#aab1bd", "working": "#f0c56b",
}  # fmt: skip
_SPARE_COLOURS = ("#2f9e6e", "#b5713a", "#c2569b", "#4fb3bf", "#8f9a3a", "#a9c7f7")


@dataclass(frozen=True)
class Block:
    """What a timeline draws as one box: a slot, or a run of slots merged into one."""

    start: float
    end: float
    slot: tuple[int, ...]
    label: str

    @property
    def colour(self) -> tuple[int, int, int]:
        """What decides its colours: kind, chunk, and the chunk of a pair's backward."""
        return self.slot[0], self.slot[1], self.slot[3]


def blocks_of(timeline: Timeline, most: int = MAX_SLOTS) -> list[list[Block]]:
    """Blocks per rank; neighbours of one kind are merged when there are more than `most` slots."""
    total = sum(len(x) for x in timeline.start)
    # Two neighbours together are at least `reach` long, so about `most` blocks remain.
    reach = 2 * timeline.seconds * timeline.schedule.ranks / most if total > most else 0.0
    rows = []
    for order, start, end in zip(
        timeline.schedule.orders, timeline.start, timeline.end, strict=True
    ):
        row = [
            Block(s, e, tuple(slot), slot_name(tuple(slot)))
            for slot, s, e in zip(order.tolist(), start.tolist(), end.tolist(), strict=True)
        ]
        rows.append(_merged(row, reach) if reach > 0 else row)
    return rows


def _merged(row: Sequence[Block], reach: float) -> list[Block]:
    """Join neighbours of one kind and chunk while the joined block is shorter than `reach`."""
    out: list[Block] = []
    count = 0
    for block in row:
        last = out[-1] if out else None
        if last and last.colour == block.colour and block.end - last.start < reach:
            count += 1
            label = f"{count} slots up to {block.label}"
            out[-1] = Block(last.start, block.end, last.slot, label)
        else:
            out.append(block)
            count = 1
    return out


def ticks(limit: float, about: int) -> list[float]:
    """Round numbers from 0 to `limit`, roughly `about` of them."""
    if limit <= 0:
        return [0.0]
    raw = limit / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(x * power for x in (1, 2, 5, 10) if x * power >= raw * 0.999)
    return [i * step for i in range(int(limit / step + 1e-9) + 1)]


def _time_axis(seconds: float) -> str:
    marks = (
        f'<i style="left:{100 * t / seconds:.3f}%"><b>{t:g} s</b></i>'
        for t in ticks(seconds, 12)
        if t < 0.985 * seconds  # the box would cut the label of a mark on its edge
    )
    return f'<div class="xaxis">{"".join(marks)}</div>'


def _svg(height: float, body: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{body}</svg>'
    )


def timeline_chart(timeline: Timeline, rows: Sequence[Sequence[Block]]) -> str:
    """Pipeline timeline: one row per rank; a pair is its forward above its backward."""
    scale = WIDTH / (timeline.seconds or 1.0)
    paths: dict[tuple[str, int], list[str]] = defaultdict(list)
    for rank, row in enumerate(rows):
        top = rank * ROW + 1
        for block in row:
            x, width = block.start * scale, (block.end - block.start) * scale
            for kind, chunk, y, height in _boxes(block.slot, top):
                paths[kind, chunk].append(_box(x, y, width, height))
    shades = max(timeline.schedule.chunks - 1, 1)
    body = "".join(
        f'<path class="k{kind}" opacity="{1 - 0.5 * chunk / shades:.2f}" d="{"".join(boxes)}"/>'
        for (kind, chunk), boxes in sorted(paths.items())
    )
    ranks = timeline.schedule.ranks
    names = "".join(f"<span>rank {r}</span>" for r in range(ranks))
    svg = _svg(ranks * ROW, body, "what each pipeline rank runs over time")
    row_px = 24 if ranks <= 16 else 16
    return (
        f'<div class="plot timeline" style="--h:{ranks * row_px}px"><div class="yaxis rows">'
        f'{names}</div><div class="scroll"><div class="canvas" id="timeline" '
        f'data-seconds="{timeline.seconds:.6g}">{svg}{_time_axis(timeline.seconds)}</div></div>'
        "</div>"
    )


def _boxes(slot: tuple[int, ...], top: float) -> Iterable[tuple[str, int, float, float]]:
    """Kind, chunk, y and height of the boxes of a slot."""
    full, half = ROW - 2, ROW / 2 - 1
    if slot[0] == Kind.FB:
        yield "F", slot[1], top, half
        yield "B", slot[3], top + half, half
    else:
        yield Kind(slot[0]).name, slot[1], top, full


def _box(x: float, y: float, width: float, height: float) -> str:
    # A sliver of background between neighbours shows where one slot ends.
    shown = max(width - min(0.08 * width, 6.0), 0.1)
    return f"M{x:.1f} {y:g}h{shown:.1f}v{height:g}h-{shown:.1f}z"


def memory_curve(
    result: StepResult, rank: int, bins: int = MEMORY_BINS
) -> tuple[float, FloatArray]:
    """Static GiB of a rank, and the most activations it holds in each of `bins` equal times."""
    static = float(sum(x[rank] for x in result.static_gib.values()))
    start, held = result.timeline.start[rank], result.activation_gib[rank]
    edges = np.linspace(0.0, result.timeline.seconds, bins + 1)
    first = np.searchsorted(start, edges[:-1], "right") - 1
    last = np.searchsorted(start, edges[1:], "left")
    curve = [held[max(a, 0) : b].max(initial=0.0) for a, b in zip(first, last, strict=True)]
    return static, np.array(curve)


def memory_chart(result: StepResult) -> str:
    """GiB of every pipeline rank over the pipeline's time, the fullest highlighted."""
    fullest = result.prediction.peak_memory_rank
    curves = [memory_curve(result, r) for r in range(result.timeline.schedule.ranks)]
    peak = max(static + float(curve.max(initial=0.0)) for static, curve in curves)
    top = 1.06 * max(peak, result.limit_gib)
    height = 1000.0

    def y(gib: float) -> float:
        return height * (1 - gib / top)

    lines = []
    for rank, (static, curve) in enumerate(curves):
        name = f"rank {rank}: peak {static + curve.max(initial=0.0):.1f} GiB, static {static:.1f}"
        path = _steps([y(static + x) for x in curve.tolist()])
        kind = "most" if rank == fullest else "other"
        lines.append((kind, f'<path class="{kind}" d="{path}"><title>{name}</title></path>'))
    static, curve = curves[fullest]
    area = _steps([y(static + x) for x in curve.tolist()]) + f"V{y(static):.1f}H0z"
    body = (
        f'<path class="held" d="{area}"/><path class="static" d="M0 {y(static):.1f}H{WIDTH}V'
        f'{height:g}H0z"/>{"".join(x for _, x in sorted(lines, reverse=True))}'
        f'<path class="limit" d="M0 {y(result.limit_gib):.1f}H{WIDTH}"/>'
    )
    marks = "".join(
        f'<i style="top:{100 * (1 - g / top):.2f}%">{g:g}</i>' for g in ticks(top, 7) if g < top
    )
    limit = 100 * (1 - result.limit_gib / top)
    svg = _svg(height, body, "GiB per pipeline rank over time")
    return (
        f'<div class="plot memory" style="--h:300px"><div class="yaxis">{marks}</div>'
        f'<div class="scroll"><div class="canvas">{svg}'
        f'<em style="top:{limit:.2f}%">limit {result.limit_gib:.1f} GiB</em>'
        f"{_time_axis(result.timeline.seconds)}</div></div></div>"
    )


def _steps(values: Sequence[float]) -> str:
    """An SVG path of a step function over the whole width."""
    if not values:
        return ""
    parts, last = [f"M0 {values[0]:.1f}"], values[0]
    for i, value in enumerate(values):
        if value != last:
            parts.append(f"H{WIDTH * i / len(values):.0f}V{value:.1f}")
            last = value
    return "".join(parts) + f"H{WIDTH}"


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each part; known parts keep theirs on every report."""
    spare = iter(_SPARE_COLOURS * 8)
    return {x: _COLOURS.get(x) or next(spare, "#777") for x in dict.fromkeys(names)}


def stacked_bar(parts: Mapping[str, float], whole: float, unit: str, colour: dict[str, str]) -> str:
    """One bar of parts as wide as their share of `whole`; names and values on hover."""
    cells = []
    for name, value in parts.items():
        share = 100 * value / whole if whole > 0 else 0.0
        if share <= 0.02:
            continue
        text = f"{value:.2f}" if share > 6.5 else ""
        cells.append(
            f'<span style="width:{share:.3f}%;background:{colour[name]}" '
            f'title="{escape(name)}: {value:.3f} {unit}">{text}</span>'
        )
    return f'<div class="bar">{"".join(cells)}</div>'


def legend(colour: Mapping[str, str]) -> str:
    """Names of colours."""
    items = (f'<li><b style="background:{c}"></b>{escape(x)}</li>' for x, c in colour.items())
    return f'<ul class="legend">{"".join(items)}</ul>'
