"""V-Half: two chunks per rank in a V, in half of the memory of 1F1B.

The first chunk's forward and the second one's gradient take two pass times from rank to rank, the
way back one, so a rank holds about ``P/2`` rank-stages [Qi et al. 2024, section 3.3].
"""

from __future__ import annotations

from unjam.schedule.building_block import block_schedule
from unjam.schedule.ir import Schedule


def v_half(ranks: int, micro_batches: int) -> Schedule:
    """V-Half of any P >= 1 and M >= 1."""
    return block_schedule("v-half", ranks, micro_batches, (2, 1, 2, 1))
