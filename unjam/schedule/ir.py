"""The schedule: what each pipeline rank runs, in order.

The twin simulates this object and the runtime executes it.

Letters: P pipeline ranks, V chunks per rank, M micro-batches. Chunk ``v`` of rank ``r`` is *place*
``v * P + r``, the index of every array of places; which stage of the model it runs is the
schedule's `Placement`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

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


class Placement(StrEnum):
    """Which stage of the model each place runs."""

    LOOP = "loop"  # chunk after chunk from rank 0 to rank P-1: stage v * P + r
    V = "v"  # odd chunks run back from rank P-1 to rank 0
    BIDIRECTIONAL = "bidirectional"  # two copies of the model; the second runs from rank P-1


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
        placement: which stage each place runs.
    """

    name: str
    ranks: int
    chunks: int
    micro_batches: int
    orders: tuple[IntArray, ...]
    placement: Placement = Placement.LOOP

    @property
    def chain(self) -> int:
        """Stages that a micro-batch passes; stage ``s`` is the first of its chain if s % chain = 0.

        The second copy of a bidirectional schedule has stages P to 2P-1.
        """
        return self.ranks * (1 if self.placement == Placement.BIDIRECTIONAL else self.chunks)

    @property
    def weight_copies(self) -> int:
        """How often every weight is held."""
        return self.ranks * self.chunks // self.chain

    def stage(self, rank: int, chunk: int) -> int:
        """Index of the stage that `rank` runs as `chunk`."""
        back = self.placement != Placement.LOOP and chunk % 2 == 1
        return chunk * self.ranks + (self.ranks - 1 - rank if back else rank)

    def micro_batches_of(self, chunk: int) -> range:
        """Micro-batches that pass a chunk: all, or the half that its copy of the model runs."""
        if self.placement != Placement.BIDIRECTIONAL:
            return range(self.micro_batches)
        half = (self.micro_batches + 1) // 2
        return range(half) if chunk == 0 else range(half, self.micro_batches)

    def stage_of_place(self) -> IntArray:
        """Stage of each place, ``[P*V]``."""
        places = [self.stage(r, v) for v in range(self.chunks) for r in range(self.ranks)]
        return np.array(places, dtype=np.int32)

    def neighbours(self) -> tuple[IntArray, IntArray]:
        """Places of the stage before and of the stage after each place, ``[P*V]``; -1 = none."""
        stage = self.stage_of_place()
        place = np.argsort(stage).astype(np.int32)
        before = np.where(stage % self.chain > 0, place[stage - 1], -1)
        last = stage % self.chain == self.chain - 1
        after = np.where(last, -1, place[np.minimum(stage + 1, len(stage) - 1)])
        return before.astype(np.int32), after.astype(np.int32)
