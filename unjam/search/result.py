"""What a search yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unjam.spec.cluster import ClusterSpec
from unjam.spec.model import ModelSpec
from unjam.spec.strategy import JobSpec
from unjam.twin.result import StepResult


@dataclass(frozen=True)
class PublishedResult:
    """A published measurement beside the twin's prediction for the same strategy.

    Attributes:
        label: what was run.
        devices: devices it ran on.
        tokens_per_second: published tokens/s of the whole cluster.
        predicted_tokens_per_second: the twin's, or None where the strategy does not fit.
        source: where it was published.
        note: what differs or why the strategy does not fit; one line.
    """

    label: str
    devices: int
    tokens_per_second: float
    predicted_tokens_per_second: float | None
    source: str
    note: str = ""


@dataclass(frozen=True)
class SearchResult:
    """Ranked strategies.

    Attributes:
        model: the model.
        cluster: the cluster.
        job: the job.
        best: the best strategies, fastest first, simulated.
        counts: how many strategies: ``raw``, ``invalid``, ``pruned``, ``simulated``.
        invalid_by_reason: how many were invalid for each reason.
        pruned_by_bound: how many were pruned by each bound (``memory``, ``time``).
        seconds: wall time of the search.
        published: published figures for this model and cluster.
        notes: remarks in words: why the best differs from the published strategy, hints.
    """

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    best: tuple[StepResult, ...]
    counts: Mapping[str, int]
    invalid_by_reason: Mapping[str, int]
    pruned_by_bound: Mapping[str, int]
    seconds: float
    published: tuple[PublishedResult, ...] = ()
    notes: tuple[str, ...] = ()
