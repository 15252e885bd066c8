"""Schedules by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from unjam.schedule.adaptive_pipe import adaptive_pipe
from unjam.schedule.dual_pipe import dual_pipe
from unjam.schedule.dual_pipe_v import dual_pipe_v
from unjam.schedule.gpipe import gpipe
from unjam.schedule.interleaved import interleaved
from unjam.schedule.interleaved_zero_bubble import interleaved_zero_bubble
from unjam.schedule.ir import Schedule
from unjam.schedule.one_f_one_b import one_f_one_b
from unjam.schedule.v_half import v_half
from unjam.schedule.v_min import v_min
from unjam.schedule.zb_h1 import zb_h1
from unjam.schedule.zb_h2 import zb_h2
from unjam.schedule.zbv import zbv
from unjam.spec.errors import InputError

ANY = 0


@dataclass(frozen=True, slots=True)
class Generator:
    """How a schedule is made.

    Attributes:
        chunks: chunks per rank that it is made for; `ANY` = as many as asked for.
        make: the schedule of P, V and M.
    """

    chunks: int
    make: Callable[[int, int, int], Schedule]


GENERATORS: dict[str, Generator] = {
    "gpipe": Generator(ANY, gpipe),
    "1f1b": Generator(1, lambda p, _, m: one_f_one_b(p, m)),
    "interleaved": Generator(ANY, interleaved),
    "interleaved-zb": Generator(ANY, interleaved_zero_bubble),
    "zb-h1": Generator(1, lambda p, _, m: zb_h1(p, m)),
    "zb-h2": Generator(1, lambda p, _, m: zb_h2(p, m)),
    "zbv": Generator(2, lambda p, _, m: zbv(p, m)),
    "v-half": Generator(2, lambda p, _, m: v_half(p, m)),
    "v-min": Generator(2, lambda p, _, m: v_min(p, m)),
    "dualpipe": Generator(2, lambda p, _, m: dual_pipe(p, m)),
    "dualpipe-v": Generator(2, lambda p, _, m: dual_pipe_v(p, m)),
    "adaptive": Generator(ANY, adaptive_pipe),
}
SCHEDULE_NAMES: tuple[str, ...] = tuple(GENERATORS)


@lru_cache(maxsize=256)
def build_schedule(name: str, ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Build a schedule; the same arguments give the same object.

    Args:
        name: a key of `GENERATORS`.
        ranks: P.
        chunks: V; places per rank, so 2 for the two copies of the model in DualPipe.
        micro_batches: M.

    Raises:
        InputError: a size below 1, or one that the schedule cannot run.
    """
    for label, value in (("ranks", ranks), ("chunks", chunks), ("micro-batches", micro_batches)):
        if value < 1:
            raise InputError(f"schedule {name}: {label} {value}: must be at least 1")
    generator = GENERATORS.get(name)
    if generator is None:
        raise InputError(f"schedule {name}: unknown; use one of {', '.join(GENERATORS)}")
    if generator.chunks not in (ANY, chunks):
        raise InputError(
            f"schedule {name}: {chunks} chunks per rank: runs {generator.chunks}; use --chunks "
            f"{generator.chunks} or another schedule"
        )
    return generator.make(ranks, chunks, micro_batches)
