"""Schedules against closed forms, and the checker against mutated orders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unjam.schedule.check import check
from unjam.schedule.in_flight import in_flight, peak_in_flight
from unjam.schedule.ir import Schedule
from unjam.schedule.registry import build_schedule
from unjam.schedule.tables import backward_table, forward_table, paired_order
from unjam.spec.errors import InputError
from unjam.twin.engine import simulate, simulate_seconds
from unjam.twin.graph import slot_graph
from unjam.twin.timeline import Durations

FORWARD, BACKWARD = 1.0, 2.0


def durations(
    schedule: Schedule, forward: float = FORWARD, gradient: float = BACKWARD, weight: float = 0.0
) -> Durations:
    """Every chunk pass takes the same; a pair costs what its parts cost one after the other."""
    p, v = schedule.ranks, schedule.chunks
    full = np.ones(p * v)
    cube = np.ones((p, v, v))
    total = forward + gradient + weight
    return Durations(
        forward=full * forward,
        input_gradient=full * gradient,
        weight_gradient=full * weight,
        pair=cube * total,
        pair_forward_sent=cube * total,
        pair_backward_sent=cube * total,
        send=full * 0.0,
        ready=full * 0.0,
    )


def bubble_seconds(schedule: Schedule, **kwargs: float) -> np.ndarray:
    seconds, busy, _ = simulate_seconds(schedule, durations(schedule, **kwargs))
    return seconds - busy


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 5), (2, 2), (4, 8), (8, 8), (8, 20)])
def test_1f1b_bubble_equals_closed_form(p: int, m: int) -> None:
    schedule = build_schedule("1f1b", p, 1, m)
    assert bubble_seconds(schedule) == pytest.approx((p - 1) * (FORWARD + BACKWARD))


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 4, 8), (8, 3, 16), (16, 2, 64)]
)
def test_interleaved_bubble_equals_closed_form(p: int, v: int, m: int) -> None:
    # F and B of a rank are v chunk passes each, so (P-1)(F+B)/V is (P-1) chunk passes of each.
    schedule = build_schedule("interleaved", p, v, m)
    assert bubble_seconds(schedule) == pytest.approx((p - 1) * (FORWARD + BACKWARD))


@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 2, 8), (4, 2, 16), (4, 4, 16), (8, 3, 32), (16, 2, 64)]
)
def test_adaptive_bubble_is_no_larger_than_interleaved(p: int, v: int, m: int) -> None:
    schedule = build_schedule("adaptive", p, v, m)
    assert bubble_seconds(schedule).max() <= (p - 1) * (FORWARD + BACKWARD) + 1e-9


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 16), (8, 2, 32), (16, 2, 64)])
def test_weight_gradients_behind_the_send_shrink_the_bubble(p: int, v: int, m: int) -> None:
    schedule = build_schedule("adaptive", p, v, m)
    whole = bubble_seconds(schedule, gradient=2.0, weight=0.0).max()
    split = bubble_seconds(schedule, gradient=1.0, weight=1.0).max()
    assert split < whole


@pytest.mark.parametrize(
    ("name", "p", "v", "expected"),
    [
        ("1f1b", 8, 1, 8),
        ("interleaved", 8, 2, 8 + 7 / 2),
        ("interleaved", 4, 4, 4 + 3 / 4),
        ("adaptive", 8, 2, 8 * 1.5),
        ("adaptive", 16, 2, 16 * 1.5),
        ("adaptive", 4, 4, 4 * 1.25),
    ],
)
def test_peak_activations_of_rank_0_equal_closed_form(
    name: str, p: int, v: int, expected: float
) -> None:
    schedule = build_schedule(name, p, v, 8 * p)  # type: ignore[arg-type]
    peak = peak_in_flight(schedule, np.full(p * v, 1 / v))
    assert peak[0] == pytest.approx(expected)
    assert peak.max() == peak[0]


@given(
    name=st.sampled_from(["1f1b", "interleaved", "adaptive"]),
    p=st.integers(1, 7),
    v=st.integers(1, 4),
    m=st.integers(1, 25),
)
def test_any_size_is_valid_or_one_clear_line(name: str, p: int, v: int, m: int) -> None:
    try:
        schedule = build_schedule(name, p, v, m)  # type: ignore[arg-type]
    except InputError as error:
        assert "\n" not in str(error)
        assert name != "adaptive"
        return
    check(schedule)
    timeline = simulate(schedule, durations(schedule))
    assert timeline.seconds >= (FORWARD + BACKWARD) * v * m - 1e-9
    assert all(x[-1] <= 1 + 1e-9 for x in in_flight(schedule, np.ones(p * v)))


def test_without_the_extra_forward_pairs_deadlock() -> None:
    p, v, m = 4, 2, 8
    forwards = forward_table(p, v, m)
    backwards = backward_table(forwards, v)
    orders = tuple(
        paired_order(forwards, backwards, 2 * (p - 1 - r) + (v - 1) * p) for r in range(p)
    )
    schedule = Schedule("adaptive", p, v, m, orders)
    with pytest.raises(InputError, match="deadlock"):
        check(schedule)
    with pytest.raises(InputError, match="deadlock: rank"):
        simulate(schedule, durations(schedule))


@given(rank=st.integers(0, 3), slot=st.integers(0, 30), seed=st.integers(0, 9))
def test_checker_catches_a_lost_or_repeated_slot(rank: int, slot: int, seed: int) -> None:
    schedule = build_schedule("interleaved", 4, 2, 8)
    order = schedule.orders[rank]
    mutated = np.delete(order, slot, axis=0) if seed % 2 else np.insert(order, slot, order[slot], 0)
    orders = (*schedule.orders[:rank], mutated, *schedule.orders[rank + 1 :])
    with pytest.raises(InputError, match=f"rank {rank}"):
        check(replace(schedule, orders=orders))
    with pytest.raises(InputError, match="times"):
        slot_graph(replace(schedule, orders=orders))


def test_checker_catches_a_backward_before_its_forward() -> None:
    schedule = build_schedule("1f1b", 2, 1, 4)
    swapped = schedule.orders[1][[1, 0, *range(2, 8)]]
    with pytest.raises(InputError, match="before its F"):
        check(replace(schedule, orders=(schedule.orders[0], swapped)))


@pytest.mark.parametrize("bad", [(0, 1, 4), (2, 0, 4), (2, 1, 0), (2, 1, -3)])
def test_sizes_below_one_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        build_schedule("1f1b", *bad)


def test_same_arguments_give_the_same_schedule() -> None:
    assert build_schedule("adaptive", 4, 2, 8) is build_schedule("adaptive", 4, 2, 8)
