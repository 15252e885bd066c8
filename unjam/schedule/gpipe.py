"""GPipe: all forwards, then all backwards, the last micro-batch first.

    rank 0  F0 F1 F2 F3          B3 B2 B1 B0
    rank 1     F0 F1 F2 F3 B3 B2 B1 B0

[Huang et al. 2019.] Bubble ``(P-1)(F+B)`` per rank, all M micro-batches in flight. Of several
chunks per rank, each runs all its micro-batches before the next one starts [Lamy-Poirier 2023,
breadth-first pipeline].
"""

from __future__ import annotations

import numpy as np

from unjam.schedule.ir import Schedule
from unjam.schedule.tables import alternating_order


def gpipe(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """GPipe of any P, V, M >= 1."""
    chunk, batch = np.divmod(np.arange(chunks * micro_batches, dtype=np.int32), micro_batches)
    forwards = np.stack([chunk, batch], axis=1)
    order = alternating_order(forwards, forwards[::-1], len(forwards))
    return Schedule("gpipe", ranks, chunks, micro_batches, (order,) * ranks)
