"""Sub-operations of passes: what waits for what, and on which stream each runs.

A layer is attention A, dispatch D, experts E, combine C, and a shared expert S beside D, E and C:

    forward            A_f ── D_f ── E_f ── C_f ──▶ next layer
                         └──────── S_f ─────────▶
    backward   layer above ──▶ C_b ── E_b ── D_b ── A_b ──▶ layer below
                         └──────── S_b ──────────┘
    weights    E_w after E_b, S_w after S_b, A_w after A_b: nothing waits for them

Each rank has a computation stream and two channels. A hierarchical All-to-All is two operations:
D_f and C_b cross nodes first and then spread inside the node, C_f and D_b the other way round.

A pass is cut into slices of its tokens, by sample or as causal slices of the sequence: slice i of a
forward attends to slices up to i, and a backward runs from the last slice to the first. While one
slice is under way on a channel, the next computes; finished slices go to the next stage at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class SubOperation(IntEnum):
    """Columns of a table of seconds per layer."""

    A_F = 0
    S_F = 1
    E_F = 2
    A_B = 3
    S_B = 4
    E_B = 5
    A_W = 6
    S_W = 7
    E_W = 8
    D_F_INTER = 9
    D_F_INTRA = 10
    C_F_INTRA = 11
    C_F_INTER = 12
    C_B_INTER = 13
    C_B_INTRA = 14
    D_B_INTRA = 15
    D_B_INTER = 16


COMMUNICATION = tuple(x for x in SubOperation if x >= SubOperation.D_F_INTER)
WEIGHTS = (SubOperation.A_W, SubOperation.S_W, SubOperation.E_W)
COMPUTE, INTER, INTRA = 0, 1, 2  # streams of a rank
STREAMS = 3


def stream_of(what: SubOperation) -> int:
    """`COMPUTE`, or the channel (`INTER`, `INTRA`) on which a sub-operation runs."""
    if what < SubOperation.D_F_INTER:
        return COMPUTE
    return INTRA if what.name.endswith("INTRA") else INTER


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Seconds of the sub-operations of every layer, by place (``chunk * P + rank``).

    Attributes:
        seconds: ``[L, 17]``, columns `SubOperation`; a layer without experts has zeros.
        offsets: place p runs layers ``offsets[p]:offsets[p+1]``; it may have none. ``[P*V + 1]``.
        send: seconds in which a whole activation (or gradient) leaves a place, ``[P*V]``.
        size: what one micro-batch leaves in memory at a place, ``[P*V]``; any unit.
    """

    seconds: FloatArray
    offsets: IntArray
    send: FloatArray
    size: FloatArray

    def without_communication(self) -> LayerTable:
        """The same layers if dispatch and combine took no time."""
        seconds = self.seconds.copy()
        seconds[:, COMMUNICATION] = 0.0
        return LayerTable(seconds, self.offsets, self.send, self.size)

    def per_rank(self, ranks: int, columns: tuple[SubOperation, ...]) -> FloatArray:
        """Seconds of some sub-operations of one micro-batch on each rank, ``[P]``."""
        layer = np.concatenate([[0.0], np.cumsum(self.seconds[:, columns].sum(axis=1))])
        return np.asarray(np.diff(layer[self.offsets]).reshape(-1, ranks).sum(axis=0))


@dataclass(frozen=True, slots=True)
class Slicing:
    """Into how many slices passes are cut.

    Attributes:
        forward: slices of a lone forward.
        backward: slices of a lone backward.
        pair: slices of each half of a pair.
        weights: whether weight gradients are cut too; else they run whole, after all slices.
        cost: share of a pass that each further slice adds (smaller kernels and messages): a pass
            cut into s slices takes ``1 + cost * (s-1)`` times as long.
    """

    forward: int = 1
    backward: int = 1
    pair: int = 1
    weights: bool = True
    cost: float = 0.0
