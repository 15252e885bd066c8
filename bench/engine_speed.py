"""Nanoseconds per slot of the event engine, against reading its graph once.

Run: ``python bench/engine_speed.py``. The floor is the time in which this core copies as many bytes
as a sweep reads and writes: per slot 7 + 1 indices of 4 bytes, 2 results and 4 gathered numbers of
8 bytes. A sweep cannot reach it, because each slot also waits for the results of others.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from unjam.schedule.registry import build_schedule
from unjam.spec.strategy import ScheduleName
from unjam.twin.engine import simulate_seconds
from unjam.twin.graph import slot_graph
from unjam.twin.timeline import Durations

BYTES_PER_SLOT = 8 * 4 + 6 * 8
CASES: tuple[tuple[ScheduleName, int, int, int], ...] = (
    ("1f1b", 8, 1, 64),
    ("interleaved", 16, 2, 256),
    ("adaptive", 16, 2, 256),
    ("adaptive", 32, 8, 512),
)


def best_seconds(run: Callable[[], object], repeats: int = 30) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def random_durations(ranks: int, chunks: int) -> Durations:
    rng = np.random.default_rng(0)
    pair = rng.uniform(2, 3, (ranks, chunks, chunks))
    f, i, w, send, ready = rng.uniform(0, 1, (5, ranks * chunks))
    return Durations(f, i, w, pair, pair * 0.9, pair * 0.8, send, ready)


def engine_case(name: ScheduleName, ranks: int, chunks: int, micro_batches: int) -> None:
    schedule = build_schedule(name, ranks, chunks, micro_batches)
    durations = random_durations(ranks, chunks)
    begin = time.perf_counter()
    slots = len(slot_graph(schedule).slots)
    graph_seconds = time.perf_counter() - begin
    seconds = best_seconds(lambda: simulate_seconds(schedule, durations))
    source = np.zeros(slots * BYTES_PER_SLOT // 16)
    target = np.empty_like(source)
    floor = best_seconds(lambda: np.copyto(target, source))
    print(
        f"{name:12s} P{ranks} V{chunks} M{micro_batches}: {slots} slots, graph once "
        f"{graph_seconds * 1e3:.1f} ms, step {seconds * 1e6:.0f} us, "
        f"{seconds / slots * 1e9:.1f} ns a slot, {seconds / floor:.1f} x its bytes' copy"
    )


if __name__ == "__main__":
    engine_case(*CASES[0])  # compiles
    for case in CASES:
        engine_case(*case)
