"""Published measurements that a plan is set beside."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from unjam.spec.names import preset_folder
from unjam.spec.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One published run.

    Attributes:
        label: what was run.
        model: preset name of the model.
        cluster: preset name of the cluster.
        devices: devices.
        seq_len: tokens of a sequence; None = not published.
        global_batch: sequences of a step; None = not published.
        strategy: the parallel strategy; None where unjam's schedules do not cover it.
        tokens_per_second: of the whole cluster.
        source: where it was published.
        note: what a reader has to know.
    """

    label: str
    model: str
    cluster: str
    devices: int
    seq_len: int | None
    global_batch: int | None
    strategy: Strategy | None
    tokens_per_second: float
    source: str
    note: str = ""


def published_runs(model_name: str, cluster_name: str) -> list[PublishedRun]:
    """Published runs of a model on a cluster, in the order of the data file."""
    text = preset_folder("published.yaml").read_text(encoding="utf-8")
    runs = []
    for row in yaml.safe_load(text):
        strategy = row.pop("strategy")
        run = PublishedRun(**row, strategy=Strategy(**strategy) if strategy else None)
        if run.model == model_name.lower() and run.cluster == cluster_name.lower():
            runs.append(run)
    return runs
