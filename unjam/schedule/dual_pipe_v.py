"""DualPipeV: DualPipe folded into a V, so that every weight is held once.

    rank 0   a a a a a a  a A  A I W a A ..  a&A A&a a&A A&a ..  I A&a ..  A a  W a  W
    rank P-1 a A a A ..

(a: first chunk; A: second; x&y: a forward of x paired with a backward of y.) One half of DualPipe's
ranks on a model twice as deep: the way back runs the second half of the layers in place of the
second copy [Qi et al. 2025, "DualPipe could be better without the Dual"; DeepSeek-AI 2025]. Bubble
``(P-1)(f&b + b - 3w)`` in passes of a chunk; every rank holds up to ``P + 1/2`` rank-stages.

Less than 2P micro-batches run in the order of 2P without those that are left over.
"""

from __future__ import annotations

from unjam.schedule.ir import IntArray, Placement, Schedule
from unjam.schedule.steps import Steps
from unjam.schedule.tables import without_micro_batches


def dual_pipe_v(ranks: int, micro_batches: int) -> Schedule:
    """DualPipeV of any P >= 1 and M >= 1."""
    many = max(micro_batches, 2 * ranks)
    orders = tuple(
        without_micro_batches(
            dual_steps((0, 1), ranks - 1 - r, r + 1, many - 2 * ranks + r + 1),
            (micro_batches,) * 2,
        )
        for r in range(ranks)
    )
    return Schedule("dualpipe-v", ranks, 2, micro_batches, orders, Placement.V)


def dual_steps(chunks: tuple[int, int], outer: int, inner: int, main: int) -> IntArray:
    """The eight steps of DualPipe on one rank.

    Args:
        chunks: the chunk whose micro-batches come first on this rank, and the other one.
        outer: ranks between this one and the one where both chunks meet.
        inner: the rest of the ranks of one half (of DualPipe) or of all.
        main: rounds of two pairs.
    """
    s = Steps(2)
    one, two = chunks
    for _ in range(2 * outer):
        s.forward(one)
    for _ in range(inner):
        s.forward(one)
        s.forward(two)
    for _ in range(outer):
        s.input_gradient(two)
        s.weight_gradient()
        s.forward(two)
    for i in range(main):
        if i == 0 and outer == 0:  # both inputs are made here, one after the other
            s.forward(one)
            s.backward(two)
        else:
            s.pair(one, two)
        s.pair(two, one)
    for _ in range(outer):
        s.backward(two)
        s.pair(two, one)
    _cool_down(s, chunks, outer, inner)
    return s.order()


def _cool_down(s: Steps, chunks: tuple[int, int], outer: int, inner: int) -> None:
    """The last three steps: from the middle of the first on, weight gradients wait."""
    backward = s.backward
    one, two = chunks
    for i in range(inner):
        if i == inner // 2 and inner % 2 == 0:
            backward = s.input_gradient
        backward(two)
        if i == inner // 2 and inner % 2 == 1:
            backward = s.input_gradient
        backward(one)
    for _ in range(outer):
        s.weight_gradient()
        s.input_gradient(one)
    for _ in range(s.pending):
        s.weight_gradient()
