"""The event engine against a plain simulator that repeats until nothing changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unjam.schedule.ir import Kind, Schedule
from unjam.schedule.registry import build_schedule
from unjam.twin.engine import simulate, simulate_seconds
from unjam.twin.timeline import Durations


def random_durations(schedule: Schedule, seed: int) -> Durations:
    rng = np.random.default_rng(seed)
    p, v = schedule.ranks, schedule.chunks
    pair = rng.uniform(0.5, 2.0, (p, v, v))
    stages = (rng.uniform(0.0, 2.0, p * v) for _ in range(5))
    forward, gradient, weight, send, ready = stages
    sent = (pair * rng.uniform(0.1, 1.0, pair.shape) for _ in range(2))
    return Durations(forward, gradient, weight, pair, *sent, send=send, ready=ready)


def reference(  # noqa: PLR0912
    schedule: Schedule, d: Durations
) -> list[list[tuple[float, float]]]:
    """Longest paths by relaxation: push slots back until all are consistent."""
    p, last = schedule.ranks, schedule.ranks * schedule.chunks - 1
    orders = [[tuple(x) for x in o.tolist()] for o in schedule.orders]
    times = [[(0.0, 0.0)] * len(o) for o in orders]
    changed = True
    while changed:
        changed = False
        activation, gradient, finished = {}, {}, {}
        for r, order in enumerate(orders):
            for (kind, c, m, c2, m2), (begin, end) in zip(order, times[r], strict=True):
                s = c * p + r
                if kind == Kind.F:
                    activation[s, m] = finished[s, m] = end
                elif kind == Kind.B:
                    gradient[s, m] = begin + d.input_gradient[s]
                else:
                    activation[s, m] = begin + d.pair_forward_sent[r, c, c2]
                    finished[s, m] = end
                    gradient[c2 * p + r, m2] = begin + d.pair_backward_sent[r, c, c2]
        for r, order in enumerate(orders):
            free = 0.0
            for i, (kind, c, m, c2, m2) in enumerate(order):
                s, begin = c * p + r, free
                if kind != Kind.B:
                    begin = max(begin, d.ready[s])
                    if s:
                        begin = max(begin, activation[s - 1, m] + d.send[s - 1])
                if kind != Kind.F:
                    t, n = (s, m) if kind == Kind.B else (c2 * p + r, m2)
                    begin = max(begin, finished[t, n])
                    if t < last:
                        begin = max(begin, gradient[t + 1, n] + d.send[t + 1])
                length = {
                    Kind.F: d.forward[s],
                    Kind.B: d.input_gradient[s] + d.weight_gradient[s],
                    Kind.FB: d.pair[r, c, c2],
                }[Kind(kind)]
                free = begin + length
                if times[r][i] != (begin, free):
                    times[r][i] = (begin, free)
                    changed = True
    return times


@given(
    name=st.sampled_from(["1f1b", "interleaved", "adaptive"]),
    p=st.integers(1, 4),
    v=st.integers(1, 3),
    groups=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_engine_equals_relaxation(name: str, p: int, v: int, groups: int, seed: int) -> None:
    schedule = build_schedule(name, p, 1 if name == "1f1b" else v, groups * p)  # type: ignore[arg-type]
    d = random_durations(schedule, seed)
    timeline = simulate(schedule, d)
    for r, slots in enumerate(reference(schedule, d)):
        assert timeline.start[r] == pytest.approx([x for x, _ in slots])
        assert timeline.end[r] == pytest.approx([x for _, x in slots])


def test_seconds_agree_with_the_timeline() -> None:
    schedule = build_schedule("adaptive", 4, 2, 8)
    d = random_durations(schedule, 1)
    timeline = simulate(schedule, d)
    seconds, busy, ends = simulate_seconds(schedule, d)
    assert seconds == timeline.seconds
    assert busy == pytest.approx(timeline.busy_seconds())
    for r, order in enumerate(schedule.orders):
        for v in range(2):
            mine = ((order[:, 0] == Kind.B) & (order[:, 1] == v)) | (order[:, 3] == v)
            assert ends[r, v] == timeline.end[r][mine].max()


def test_slower_parts_never_speed_up_a_step() -> None:
    schedule = build_schedule("interleaved", 4, 2, 8)
    d = random_durations(schedule, 2)
    slower = Durations(d.forward * 1.1, *list(vars(d).values())[1:])
    assert simulate(schedule, slower).seconds >= simulate(schedule, d).seconds
