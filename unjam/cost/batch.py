"""A batch of strategies as a struct of arrays.

Cost functions take a batch and return one value per strategy, shape ``[N]``. A single strategy is
a batch of one, so a search and a simulation share one implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from unjam.spec.strategy import DISPATCHERS, RECOMPUTE, SCHEDULES, Strategy

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

RECOMPUTE_NAMES: tuple[str, ...] = tuple(RECOMPUTE)


@dataclass(frozen=True)
class Batch:
    """N strategies without their layouts; every field is int64 ``[N]``.

    `recompute`, `dispatcher` and `schedule` index `RECOMPUTE_NAMES`, `DISPATCHERS`, `SCHEDULES`.
    """

    tp: IntArray
    pp: IntArray
    vpp: IntArray
    ep: IntArray
    etp: IntArray
    cp: IntArray
    dp: IntArray
    mbs: IntArray
    zero: IntArray
    recompute: IntArray
    dispatcher: IntArray
    schedule: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def edp(self) -> IntArray:
        """Replicas of each routed expert."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    def take(self, index: IntArray | npt.NDArray[np.bool_]) -> Batch:
        """The strategies at `index`."""
        return Batch(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def recomputes(self, module: str) -> npt.NDArray[np.bool_]:
        """Whether each strategy recomputes `module`; ``full`` recomputes every one."""
        has = [module in RECOMPUTE[x] or "full" in RECOMPUTE[x] for x in RECOMPUTE_NAMES]
        return np.asarray(has)[self.recompute]

    def strategy(self, i: int, layout: str = "") -> Strategy:
        """Strategy `i` as a data class."""
        numbers = ("tp", "pp", "vpp", "ep", "etp", "cp", "dp", "mbs", "zero")
        return Strategy(
            **{x: int(getattr(self, x)[i]) for x in numbers},
            recompute=RECOMPUTE_NAMES[self.recompute[i]],
            dispatcher=DISPATCHERS[self.dispatcher[i]],
            schedule=SCHEDULES[self.schedule[i]],
            layout=layout,
        )


def batch_of(strategies: Sequence[Strategy]) -> Batch:
    """Pack strategies into a batch."""

    def column(name: str, values: tuple[str, ...] | None = None) -> IntArray:
        cells = [getattr(x, name) for x in strategies]
        return np.array([values.index(c) for c in cells] if values else cells, dtype=np.int64)

    names = {"recompute": RECOMPUTE_NAMES, "dispatcher": DISPATCHERS, "schedule": SCHEDULES}
    return Batch(**{f.name: column(f.name, names.get(f.name)) for f in fields(Batch)})
