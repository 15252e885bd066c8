"""Seconds of passes from their sub-operations: lone forwards, lone backwards, and pairs.

A pass is a sequence of units (layers, embedding, head). Compute and EP communication are two
in-order streams; a sub-operation starts when its stream is free and its input is there.
"""

from __future__ import annotations

import numpy as np

from unjam.cost.batch import FloatArray, IntArray
from unjam.spec.compiled import compiled

# Columns of the `[U, 10]` table that these functions read, exposed TP communication and
# recomputation already added to the pass that waits for them.
A_F, E_F, A_B, A_W, E_B, E_W, D_F, C_F, D_B, C_B = range(10)
FORWARD = [A_F, E_F, D_F, C_F]
BACKWARD = [A_B, A_W, E_B, E_W, D_B, C_B]


@compiled
def lone_backward(ops: FloatArray, units: IntArray) -> tuple[float, float]:
    """A lone backward of `units` in reverse; W is free to move.

    While the input gradient waits for communication, pending weight gradients that fit into the
    gap run; the rest run after the gradient is sent to the previous stage.

    Returns:
        Offset at which the input gradient is ready to send, and the whole duration, seconds.
    """
    pending = np.empty(2 * len(units))
    count = 0
    now = 0.0
    for j in range(len(units) - 1, -1, -1):
        u = units[j]
        for gap, work, weight in (
            (ops[u, C_B], ops[u, E_B], ops[u, E_W]),
            (ops[u, D_B], ops[u, A_B], ops[u, A_W]),
        ):
            arrives = now + gap
            kept = 0
            for q in range(count):
                if now + pending[q] <= arrives:
                    now += pending[q]
                else:
                    pending[kept] = pending[q]
                    kept += 1
            pending[kept] = weight
            count = kept + 1
            now = max(now, arrives) + work
    return now, now + pending[:count].sum()


@compiled
def _communication_share(ops: FloatArray, forward: IntArray, backward: IntArray) -> float:
    """Communication over computation of a pair, at most 1."""
    compute = communication = 0.0
    for u in forward:
        compute += ops[u, A_F] + ops[u, E_F]
        communication += ops[u, D_F] + ops[u, C_F]
    for u in backward:
        compute += ops[u, A_B] + ops[u, A_W] + ops[u, E_B] + ops[u, E_W]
        communication += ops[u, D_B] + ops[u, C_B]
    return min(communication / compute, 1.0) if compute > 0 else 0.0


@compiled
def pair(
    ops: FloatArray, forward: IntArray, backward: IntArray, slowdown: float
) -> tuple[float, float, float]:
    """A forward of units `forward` interleaved with a backward of units `backward`.

    Per layer, compute runs A_f, E_b, E_w, E_f, A_b, A_w and the channel C_b, D_f, D_b, C_f
    [Adaptive Pipe; DualPipe's order with W split off]. The last A_w trails the pipeline send.

    Communication takes cores or memory bandwidth from the computation beside it: while it runs,
    computation loses the share `slowdown`, spread here over the pair.

    Returns:
        Duration, offset of the forward's send, offset of the backward's send, seconds.
    """
    stretch = 1 + slowdown * _communication_share(ops, forward, backward)
    compute = channel = forward_ready = backward_ready = trailing = 0.0
    n, m = len(forward), len(backward)
    for i in range(max(n, m)):
        has_f, has_b = i < n, i < m
        f = forward[i] if has_f else 0
        b = backward[m - 1 - i] if has_b else 0
        dispatched = eb_done = gradient = backward_ready
        if has_b and ops[b, C_B] > 0:
            channel = gradient = max(channel, backward_ready) + ops[b, C_B]
        if has_f:
            compute = dispatched = max(compute, forward_ready) + stretch * ops[f, A_F]
        if has_b:
            compute = eb_done = max(compute, gradient) + stretch * ops[b, E_B]
        if has_f and ops[f, D_F] > 0:
            channel = dispatched = max(channel, dispatched) + ops[f, D_F]
        returned = eb_done
        if has_b:
            compute += stretch * ops[b, E_W]
            if ops[b, D_B] > 0:
                channel = returned = max(channel, eb_done) + ops[b, D_B]
        if has_f:
            compute = forward_ready = max(compute, dispatched) + stretch * ops[f, E_F]
            if ops[f, C_F] > 0:
                channel = forward_ready = max(channel, forward_ready) + ops[f, C_F]
        if has_b:
            compute = backward_ready = max(compute, returned) + stretch * ops[b, A_B]
            if i == m - 1:
                trailing = stretch * ops[b, A_W]
            else:
                compute += stretch * ops[b, A_W]
    total = max(compute + trailing, forward_ready, backward_ready)
    return total, forward_ready, backward_ready


@compiled
def all_pairs(
    ops: FloatArray,
    units: IntArray,
    offsets: IntArray,
    ranks: int,
    chunks: int,
    slowdown: float,
) -> FloatArray:
    """Every pair that can occur, ``[3, P, V, V]``: duration and both send offsets.

    Args:
        ops: table of sub-operations, ``[U, 10]`` seconds.
        units: units of all stages, one stage after the other.
        offsets: stage s has ``units[offsets[s]:offsets[s+1]]``.
        ranks: P.
        chunks: V.
        slowdown: share of the compute rate that concurrent communication takes.
    """
    out = np.empty((3, ranks, chunks, chunks))
    for r in range(ranks):
        for v in range(chunks):
            s = v * ranks + r
            forward = units[offsets[s] : offsets[s + 1]]
            for w in range(chunks):
                t = w * ranks + r
                backward = units[offsets[t] : offsets[t + 1]]
                total, f_sent, b_sent = pair(ops, forward, backward, slowdown)
                out[0, r, v, w], out[1, r, v, w], out[2, r, v, w] = total, f_sent, b_sent
    return out


@compiled
def all_backwards(ops: FloatArray, units: IntArray, offsets: IntArray) -> FloatArray:
    """Every stage's lone backward with W split off, ``[2, stages]``: I and W seconds."""
    stages = len(offsets) - 1
    out = np.empty((2, stages))
    for s in range(stages):
        sent, total = lone_backward(ops, units[offsets[s] : offsets[s + 1]])
        out[0, s], out[1, s] = sent, total - sent
    return out
