"""Passes from sub-operations against closed forms and the six conditions for full overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unjam.twin.pair import (
    A_B,
    A_F,
    A_W,
    C_B,
    C_F,
    D_B,
    D_F,
    E_B,
    E_F,
    E_W,
    lone_backward,
    pair,
)

UNITS = np.zeros(3, dtype=np.int64)
seconds = st.floats(0.05, 3.0)


def table(**values: float) -> np.ndarray:
    names = {
        "A_f": A_F, "E_f": E_F, "A_b": A_B, "A_w": A_W, "E_b": E_B,
        "E_w": E_W, "D_f": D_F, "C_f": C_F, "D_b": D_B, "C_b": C_B,
    }  # fmt: skip
    ops = np.zeros((1, 10))
    for name, value in values.items():
        ops[0, names[name]] = value
    return ops


def compute_seconds(ops: np.ndarray, layers: int) -> float:
    return layers * float(ops[0, [A_F, E_F, A_B, A_W, E_B, E_W]].sum())


@given(st.tuples(*[seconds] * 6), st.tuples(*[seconds] * 4))
def test_pair_is_between_compute_and_serial(c: tuple[float, ...], d: tuple[float, ...]) -> None:
    ops = np.array([[*c, *d]])
    total, forward_sent, backward_sent = pair(ops, UNITS, UNITS, 0.0)
    compute = compute_seconds(ops, len(UNITS))
    assert compute - 1e-9 <= total <= 3 * ops.sum() + 1e-9
    assert total >= 3 * sum(d) - 1e-9  # one channel, in order
    assert forward_sent <= total + 1e-9
    assert backward_sent <= total + 1e-9


@given(st.tuples(*[seconds] * 6), st.floats(0.0, 1.0))
def test_six_conditions_hide_everything_inside(c: tuple[float, ...], share: float) -> None:
    a_f, e_f, a_b, a_w, e_b, e_w = c
    # Scale every communication to meet the published conditions for a fully hidden pair.
    most = share * min(
        e_b + e_w, e_w + e_f, a_b + a_w, a_w + a_f,
        (e_b + e_w + e_f) / 2, e_w + e_f, (a_f + a_b + a_w) / 2, a_f + a_w,
    )  # fmt: skip
    ops = np.array([[a_f, e_f, a_b, a_w, e_b, e_w, most, most, most, most]])
    total, _, _ = pair(ops, UNITS, UNITS, 0.0)
    # The first C_b has nothing before it but A_f, the last C_f nothing after it but A_b and A_w:
    # only those two edges of the pair may show.
    assert total <= compute_seconds(ops, 3) + 2 * most + 1e-9


def test_pair_without_communication_is_the_sum() -> None:
    ops = table(A_f=1, E_f=2, A_b=1.5, A_w=0.5, E_b=2, E_w=1)
    total, forward_sent, backward_sent = pair(ops, UNITS, UNITS, 0.0)
    assert total == pytest.approx(3 * 8)
    assert backward_sent == pytest.approx(total - 0.5)  # the last A_w trails the send
    assert forward_sent < backward_sent


def test_uneven_chunks_run_the_rest_alone() -> None:
    ops = table(A_f=1, E_f=1, A_b=1, A_w=1, E_b=1, E_w=1)
    total, _, _ = pair(ops, UNITS, UNITS[:1], 0.0)
    assert total == pytest.approx(3 * 2 + 4)
    assert pair(ops, UNITS[:0], UNITS, 0.0)[0] == pytest.approx(12)
    assert pair(ops, UNITS[:0], UNITS[:0], 0.0)[0] == 0


def test_lone_backward_sends_before_the_weight_gradient() -> None:
    ops = table(A_b=1, A_w=0.5, E_b=2, E_w=1)
    sent, total = lone_backward(ops, UNITS)
    assert sent == pytest.approx(3 * 3)
    assert total == pytest.approx(3 * 4.5)


def test_weight_gradients_fill_the_wait_for_communication() -> None:
    ops = table(A_b=1, A_w=1, E_b=1, E_w=1, D_b=1, C_b=1)
    sent, total = lone_backward(ops, UNITS)
    # C_b waits, E_b, D_b hides E_w, A_b, then C_b hides A_w; only the first wait is idle.
    assert sent == pytest.approx(12)
    assert total == pytest.approx(13)


@given(st.tuples(*[seconds] * 6), st.tuples(*[seconds] * 4))
def test_lone_backward_is_between_compute_and_serial(
    c: tuple[float, ...], d: tuple[float, ...]
) -> None:
    ops = np.array([[*c, *d]])
    sent, total = lone_backward(ops, UNITS)
    compute = 3 * float(ops[0, [A_B, A_W, E_B, E_W]].sum())
    serial = compute + 3 * float(ops[0, [D_B, C_B]].sum())
    assert compute - 1e-9 <= total <= serial + 1e-9
    assert 0 <= sent <= total


def test_communication_takes_its_share_of_the_compute_rate() -> None:
    ops = table(A_f=1, E_f=1, A_b=1, A_w=1, E_b=1, E_w=1, D_f=0.3, C_f=0.3, D_b=0.3, C_b=0.3)
    alone, beside = pair(ops, UNITS, UNITS, 0.0)[0], pair(ops, UNITS, UNITS, 0.5)[0]
    # Communication is a fifth of the computation and half of the rate is lost meanwhile.
    assert beside - alone == pytest.approx(0.1 * 18, rel=0.05)
