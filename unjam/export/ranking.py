"""What table and report read of a search.

Export stands beside search, not above it, so it states what it needs instead of importing it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from unjam.spec.cluster import ClusterSpec
from unjam.spec.model import ModelSpec
from unjam.spec.strategy import JobSpec, Strategy
from unjam.twin.result import StepResult

FLOP_CONVENTION = (
    "MFU: model FLOPs (causal attention halved, recomputation not counted, MTP counted) "
    "over the dense peak of the job's dtype"
)


class Published(Protocol):
    """A published measurement; see `unjam.search.result.PublishedResult`."""

    @property
    def label(self) -> str:
        """What was run."""

    @property
    def devices(self) -> int:
        """Devices it ran on."""

    @property
    def tokens_per_second(self) -> float:
        """Published tokens/s of the whole cluster."""

    @property
    def predicted_tokens_per_second(self) -> float | None:
        """The twin's figure, or None."""

    @property
    def source(self) -> str:
        """Where it was published."""

    @property
    def note(self) -> str:
        """What differs."""


class Ranking(Protocol):
    """Ranked strategies; see `unjam.search.result.SearchResult`."""

    @property
    def model(self) -> ModelSpec:
        """The model."""

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster."""

    @property
    def job(self) -> JobSpec:
        """The job."""

    @property
    def best(self) -> Sequence[StepResult]:
        """Simulated strategies, fastest first."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many strategies: ``raw``, ``invalid``, ``pruned``, ``simulated``."""

    @property
    def invalid_by_reason(self) -> Mapping[str, int]:
        """Invalid strategies by reason."""

    @property
    def pruned_by_bound(self) -> Mapping[str, int]:
        """Pruned strategies by bound."""

    @property
    def seconds(self) -> float:
        """Wall time of the search."""

    @property
    def published(self) -> Sequence[Published]:
        """Published figures."""

    @property
    def notes(self) -> Sequence[str]:
        """Remarks in words."""


def short_name(strategy: Strategy) -> str:
    """Degrees in the usual spelling; VPP, ETP and CP only where they are used."""
    s = strategy
    optional = {"vpp": s.vpp, "etp": s.etp, "cp": s.cp}
    words = [f"TP{s.tp}", f"PP{s.pp}"]
    words += [f"{name.upper()}{x}" for name, x in optional.items() if x > 1]
    words += [f"EP{s.ep}", f"DP{s.dp}", f"MBS{s.mbs}"]
    return " ".join(words) + (f" ZeRO{s.zero}" if s.zero != 1 else "")


def fullest_part(result: StepResult) -> str:
    """The largest part of the fullest device's memory."""
    return max(result.prediction.memory_gib.items(), key=lambda x: x[1], default=("-", 0.0))[0]
