"""V-Min: two chunks per rank in a V, in the least memory that such a schedule can do with.

Passes follow each other from rank to rank without a pause, so a micro-batch is through after about
4P passes and a rank holds about ``P/3`` rank-stages [Qi et al. 2024, section 3.3]. Where F, I and W
take different times, its ranks wait in every micro-batch.
"""

from __future__ import annotations

from unjam.schedule.building_block import block_schedule
from unjam.schedule.ir import Schedule


def v_min(ranks: int, micro_batches: int) -> Schedule:
    """V-Min of any P >= 1 and M >= 1."""
    return block_schedule("v-min", ranks, micro_batches, (1, 1, 1, 1))
