"""An order written down step by step, as the published diagrams read.

Micro-batches are counted here: the n-th forward of a chunk is that of its n-th micro-batch, and so
are its input gradients. Weight gradients run in the order in which their input gradients did.
"""

from __future__ import annotations

import numpy as np

from unjam.schedule.ir import IntArray, Kind


class Steps:
    """The order of one rank in the making."""

    def __init__(self, chunks: int) -> None:
        self._forwards = [0] * chunks
        self._backwards = [0] * chunks
        self._pending: list[tuple[int, int]] = []
        self._slots: list[tuple[int, int, int, int, int]] = []

    def forwards(self, chunk: int) -> int:
        """How many forwards of a chunk are written."""
        return self._forwards[chunk]

    @property
    def pending(self) -> int:
        """Weight gradients that can be written."""
        return len(self._pending)

    def forward(self, chunk: int) -> None:
        """F of the chunk's next micro-batch."""
        self._slots.append((Kind.F, chunk, self._next(self._forwards, chunk), -1, -1))

    def backward(self, chunk: int) -> None:
        """B: both gradients together."""
        self._slots.append((Kind.B, chunk, self._next(self._backwards, chunk), -1, -1))

    def pair(self, forward: int, backward: int) -> None:
        """F of one chunk and B of another (or the same) overlapped."""
        f, b = self._next(self._forwards, forward), self._next(self._backwards, backward)
        self._slots.append((Kind.FB, forward, f, backward, b))

    def input_gradient(self, chunk: int) -> None:
        """I alone; its W waits."""
        batch = self._next(self._backwards, chunk)
        self._pending.append((chunk, batch))
        self._slots.append((Kind.I, chunk, batch, -1, -1))

    def weight_gradient(self, chunk: int | None = None) -> None:
        """The W that has waited longest, of one chunk or of any; none if none waits."""
        for i, (c, batch) in enumerate(self._pending):
            if chunk in (c, None):
                self._slots.append((Kind.W, c, batch, -1, -1))
                del self._pending[i]
                return

    def order(self) -> IntArray:
        """The slots written so far, ``[slots, 5]``."""
        return np.array(self._slots, dtype=np.int32).reshape(-1, 5)

    @staticmethod
    def _next(counts: list[int], chunk: int) -> int:
        counts[chunk] += 1
        return counts[chunk] - 1
