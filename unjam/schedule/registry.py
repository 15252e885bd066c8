"""Schedules by name."""

from __future__ import annotations

from functools import lru_cache

from unjam.schedule.adaptive_pipe import adaptive_pipe
from unjam.schedule.interleaved import interleaved
from unjam.schedule.ir import Schedule
from unjam.schedule.one_f_one_b import one_f_one_b
from unjam.spec.errors import InputError
from unjam.spec.strategy import SCHEDULES, ScheduleName


@lru_cache(maxsize=256)
def build_schedule(name: ScheduleName, ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Build a schedule; the same arguments give the same object.

    Args:
        name: which schedule.
        ranks: P.
        chunks: V.
        micro_batches: M.

    Raises:
        InputError: a size below 1, or one that the schedule cannot run.
    """
    for label, value in (("ranks", ranks), ("chunks", chunks), ("micro-batches", micro_batches)):
        if value < 1:
            raise InputError(f"schedule {name}: {label} {value}: must be at least 1")
    if name == "1f1b":
        if chunks != 1:
            raise InputError(f"schedule 1f1b: {chunks} chunks per rank: use interleaved, or VPP 1")
        return one_f_one_b(ranks, micro_batches)
    if name == "interleaved":
        return interleaved(ranks, chunks, micro_batches)
    if name == "adaptive":
        return adaptive_pipe(ranks, chunks, micro_batches)
    raise InputError(f"schedule {name}: unknown; use one of {', '.join(SCHEDULES)}")
