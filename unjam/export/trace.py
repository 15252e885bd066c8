"""A simulated step as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from unjam.schedule.ir import Kind
from unjam.twin.result import StepResult

Event = dict[str, Any]
Transfer = tuple[str, float]

_COMPUTE, _ALL_TO_ALL = 0, 1
_THREADS = {_COMPUTE: "compute", _ALL_TO_ALL: "EP All-to-All"}
_FORWARD = {Kind.F, Kind.FB}
_BACKWARD = {Kind.B, Kind.I, Kind.FB}


def slot_name(slot: tuple[int, ...]) -> str:
    """Name of a slot of `Schedule.orders`: ``F c0 m3``, or ``F c0 m9 | B c1 m2`` for a pair."""
    kind, chunk, micro_batch, back_chunk, back_micro_batch = slot
    if kind == Kind.FB:
        return f"F c{chunk} m{micro_batch} | B c{back_chunk} m{back_micro_batch}"
    return f"{Kind(kind).name} c{chunk} m{micro_batch}"


def render_trace(result: StepResult) -> str:
    """The text of the trace file of one step."""
    return json.dumps(trace_of(result), separators=(",", ":"))


def trace_of(result: StepResult) -> dict[str, Any]:
    """The trace as JSON values: a process per pipeline rank, a thread per stream.

    Times are microseconds. The twin keeps All-to-All seconds per stage, so where a transfer lies
    within its slot is drawn, not simulated: in the channel's order, with equal gaps.
    """
    events: list[Event] = []
    for rank in range(result.timeline.schedule.ranks):
        events += _names(rank)
        events += _rank_events(result, rank)
    about = {"strategy": str(result.strategy), "step_seconds": result.prediction.step_seconds}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _names(rank: int) -> Iterator[Event]:
    def meta(kind: str, thread: int, **args: str | int) -> Event:
        return {"ph": "M", "pid": rank, "tid": thread, "name": kind, "args": args}

    yield meta("process_name", 0, name=f"pipeline rank {rank}")
    yield meta("process_sort_index", 0, sort_index=rank)
    for thread, name in _THREADS.items():
        yield meta("thread_name", thread, name=name)
        yield meta("thread_sort_index", thread, sort_index=thread)


def _event(rank: int, thread: int, name: str, start: float, seconds: float) -> Event:
    return {
        "ph": "X",
        "pid": rank,
        "tid": thread,
        "name": name,
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
    }


def _rank_events(result: StepResult, rank: int) -> Iterator[Event]:
    timeline = result.timeline
    order = timeline.schedule.orders[rank].tolist()
    starts, ends = timeline.start[rank].tolist(), timeline.end[rank].tolist()
    for row, start, end in zip(order, starts, ends, strict=True):
        slot = tuple(row)
        yield _event(rank, _COMPUTE, slot_name(slot), start, end - start)
        transfers = slot_transfers(result, rank, slot)
        for name, begin, seconds in place_transfers(transfers, end - start):
            yield _event(rank, _ALL_TO_ALL, name, start + begin, seconds)
    clock = timeline.seconds
    for name, seconds in result.tail_seconds.items():
        if seconds > 0:
            yield _event(rank, _COMPUTE, name, clock, seconds)
        clock += seconds


def slot_transfers(result: StepResult, rank: int, slot: tuple[int, ...]) -> list[Transfer]:
    """All-to-All names and seconds of a slot in the channel's order: C_b, D_f, D_b, C_f."""
    kind, chunk, micro_batch, back_chunk, back_micro_batch = slot
    forward = (chunk, micro_batch) if kind in _FORWARD else None
    backward = (chunk, micro_batch) if kind in _BACKWARD else None
    if kind == Kind.FB:
        backward = (back_chunk, back_micro_batch)
    wanted = (
        ("dispatch again", "recompute_ep", backward),
        ("combine B", "C_b", backward),
        ("dispatch F", "D_f", forward),
        ("dispatch B", "D_b", backward),
        ("combine F", "C_f", forward),
    )
    transfers = []
    for label, operation, owner in wanted:
        if owner is None or operation not in result.stage_seconds:
            continue
        stage = result.timeline.schedule.stage(rank, owner[0])
        seconds = float(result.stage_seconds[operation][stage])
        if seconds > 0:
            transfers.append((f"{label} c{owner[0]} m{owner[1]}", seconds))
    return transfers


def place_transfers(
    transfers: list[Transfer], slot_seconds: float
) -> list[tuple[str, float, float]]:
    """Names, offsets and seconds of transfers laid out within a slot.

    A backward opens with its combine, a forward closes with its combine; what the slot has left
    is shared by the gaps. Transfers longer than the slot are shortened to fit.
    """
    if not transfers:
        return []
    seconds = np.array([x for _, x in transfers])
    seconds *= min(1.0, slot_seconds / seconds.sum())
    opens = transfers[0][0].startswith(("combine B", "dispatch again"))
    closes = transfers[-1][0].startswith("combine F")
    gaps = len(transfers) + 1 - opens - closes
    gap = (slot_seconds - seconds.sum()) / gaps if gaps else 0.0
    offset = 0.0 if opens else gap
    placed = []
    for (name, _), length in zip(transfers, seconds.tolist(), strict=True):
        placed.append((name, offset, length))
        offset += length + gap
    return placed
