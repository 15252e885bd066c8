"""How it is trained: the job and one parallel strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["bf16", "fp8"]
Dispatcher = Literal["flat", "allgather", "dedup"]
ScheduleName = Literal["1f1b", "interleaved", "adaptive"]

DISPATCHERS: tuple[Dispatcher, ...] = ("flat", "allgather", "dedup")
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "interleaved", "adaptive")
# Schedules that pair forwards with backwards, so that each hides the other's EP communication.
OVERLAPPING: frozenset[ScheduleName] = frozenset({"adaptive"})

# Recomputation policies from none to everything. A policy names the modules whose activations are
# dropped in forward and computed again in backward (Megatron's --recompute-modules).
RECOMPUTE: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "act": frozenset({"layernorm", "moe_act"}),
    "act+mla": frozenset({"layernorm", "moe_act", "mla_up_proj"}),
    "act+mla+mlp": frozenset({"layernorm", "moe_act", "mla_up_proj", "mlp", "shared_experts"}),
    "moe": frozenset({"layernorm", "mla_up_proj", "mlp", "moe"}),
    "full": frozenset({"full"}),
}


# Batch-level MaxVio = max/mean - 1 of balanced training is about 0.5 [Wang et al. 2024,
# "Auxiliary-Loss-Free Load Balancing"]; unbalanced serving traces reach 5 to 8.
DEFAULT_IMBALANCE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What one training step has to do.

    Attributes:
        devices: devices to use.
        seq_len: tokens of a sequence.
        global_batch: sequences of one step (GBS).
        dtype: matmul precision: ``bf16``, or ``fp8`` (matmuls in FP8, the rest in BF16).
        imbalance: tokens of the heaviest expert over the mean (max/mean), 1 = even. An EP rank
            with several experts sees less of it; see `unjam.cost.dispatch.rank_imbalance`.
    """

    devices: int
    seq_len: int
    global_batch: int
    dtype: Dtype = "bf16"
    imbalance: float = DEFAULT_IMBALANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One parallel strategy.

    Attributes:
        tp: tensor (and sequence) parallelism of attention, dense FFN, embedding and head.
        pp: pipeline ranks P.
        vpp: chunks per pipeline rank V.
        ep: expert parallelism.
        etp: tensor parallelism of the routed experts.
        cp: context parallelism.
        dp: data parallelism: ``devices = tp * cp * dp * pp = etp * ep * edp * pp``.
        mbs: sequences of a micro-batch (MBS).
        zero: what data-parallel ranks shard: 0 nothing, 1 optimizer states, 2 gradients too, 3 all.
        recompute: a key of `RECOMPUTE`.
        dispatcher: token dispatcher between EP ranks.
        schedule: pipeline schedule.
        layout: layers of each virtual stage in Megatron's notation, ``Et*3|t*4|...|mL``.
    """

    tp: int
    pp: int
    vpp: int
    ep: int
    etp: int
    cp: int
    dp: int
    mbs: int
    zero: int = 1
    recompute: str = "none"
    dispatcher: Dispatcher = "flat"
    schedule: ScheduleName = "interleaved"
    layout: str = ""

    @property
    def edp(self) -> int:
        """Replicas of each routed expert."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def devices(self) -> int:
        """Devices that the strategy uses."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def overlaps(self) -> bool:
        """Whether forwards and backwards are paired to hide EP communication."""
        return self.schedule in OVERLAPPING

    def micro_batches(self, global_batch: int) -> int:
        """Micro-batches per pipeline and step, M."""
        return global_batch // (self.dp * self.mbs)

    def __str__(self) -> str:
        return (
            f"TP{self.tp} PP{self.pp} VPP{self.vpp} EP{self.ep} ETP{self.etp} CP{self.cp} "
            f"DP{self.dp} MBS{self.mbs}"
        )
