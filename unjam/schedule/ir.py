"""The schedule: what each pipeline rank runs, in order.

The twin simulates this object and the runtime executes it.

Letters: P pipeline ranks, V chunks per rank, M micro-batches. Stage ``s`` of ``P * V`` is chunk
``v`` of rank ``r`` with ``s = v * P + r``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class Kind(IntEnum):
    """What a slot runs."""

    F = 0  # forward
    B = 1  # backward: I, send, then W (W trails the send, so the next stage does not wait for it)
    I = 2  # input gradient alone  # noqa: E741 (the field's name for it)
    W = 3  # weight gradient alone
    FB = 4  # a pair: forward of one micro-batch interleaved with backward of another


@dataclass(frozen=True, eq=False)
class Schedule:
    """Orders of all pipeline ranks; equal only to itself, so that what follows can be cached.

    Attributes:
        name: generator's name.
        ranks: P.
        chunks: V.
        micro_batches: M.
        orders: one int32 array ``[slots, 5]`` per rank; columns: `Kind`, chunk, micro-batch, and
            for a pair the chunk and micro-batch of its backward (else -1, -1). The first chunk
            and micro-batch of a pair are its forward's.
    """

    name: str
    ranks: int
    chunks: int
    micro_batches: int
    orders: tuple[IntArray, ...]

    def stage(self, rank: int, chunk: int) -> int:
        """Index of the virtual stage that `rank` runs as `chunk`."""
        return chunk * self.ranks + rank
