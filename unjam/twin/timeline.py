"""When each slot of a schedule runs, and what it holds in memory meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.cost.batch import FloatArray
from unjam.schedule.ir import Schedule


@dataclass(frozen=True)
class Durations:
    """Seconds of everything a schedule runs, by place ``chunk * P + rank``.

    In a loop of chunks, place s runs stage s of the model; see `unjam.schedule.ir.Placement`.

    Attributes:
        forward: lone F of each stage, ``[P*V]``.
        input_gradient: I of each stage; a lone B sends its gradient after it.
        weight_gradient: W of each stage; a lone B lasts ``input_gradient + weight_gradient``.
        pair: a pair by rank, forward chunk and backward chunk, ``[P, V, V]``.
        pair_forward_sent: offset within the pair at which the forward's output is ready to send.
        pair_backward_sent: offset at which the backward's input gradient is ready to send.
        send: seconds from the end of a stage's pass to the neighbour's start, ``[P*V]``; for F
            the way to stage s+1, for the gradient the way to stage s-1; 0 within one rank.
        ready: earliest start of the first forward of each stage (parameter all-gather), ``[P*V]``.
    """

    forward: FloatArray
    input_gradient: FloatArray
    weight_gradient: FloatArray
    pair: FloatArray
    pair_forward_sent: FloatArray
    pair_backward_sent: FloatArray
    send: FloatArray
    ready: FloatArray


@dataclass(frozen=True)
class Timeline:
    """Start and end of every slot, aligned with ``schedule.orders``.

    Attributes:
        schedule: what ran.
        start: seconds, one float64 array ``[slots]`` per rank.
        end: the same for the ends.
    """

    schedule: Schedule
    start: tuple[FloatArray, ...]
    end: tuple[FloatArray, ...]

    @property
    def seconds(self) -> float:
        """End of the last slot of any rank."""
        return max((float(x[-1]) for x in self.end if len(x)), default=0.0)

    def busy_seconds(self) -> FloatArray:
        """Seconds that each rank runs something, ``[P]``."""
        return np.array([float(np.sum(e - s)) for s, e in zip(self.start, self.end, strict=True)])
