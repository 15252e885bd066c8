"""A plan file with the model and the cluster that it describes, checked to make one valid whole."""

from __future__ import annotations

from typing import NamedTuple

from unjam.search.rules import check_job, explain_invalid
from unjam.spec.cluster import ClusterSpec
from unjam.spec.clusters import cluster_from_mapping
from unjam.spec.files import StrPath, read_mapping
from unjam.spec.hf.reader import model_from_config
from unjam.spec.model import ModelSpec
from unjam.spec.plan import Plan
from unjam.spec.plan_io import plan_of


class OpenPlan(NamedTuple):
    """A valid plan and what it speaks of."""

    plan: Plan
    model: ModelSpec
    cluster: ClusterSpec


def open_plan(path: StrPath) -> OpenPlan:
    """Read a plan file that somebody may have edited.

    Raises:
        InputError: it cannot be read, has a bad field, or its strategy breaks a rule.
    """
    document = read_mapping(path)
    file, lines = document.file, document.lines
    plan = plan_of(document)
    model = model_from_config(
        plan.model_name, plan.model_config, file=file, lines=lines, path="model_config"
    )
    cluster = cluster_from_mapping(plan.cluster, file=file, lines=lines, prefix="cluster")
    wrong = check_job(model, cluster, plan.job)
    if wrong:
        raise document.error(f"job.{wrong[0]}", wrong[1])
    if not plan.strategy.layout:
        raise document.error("strategy.layout", "missing: write the layers of each stage")
    broken = explain_invalid(model, cluster, plan.job, plan.strategy)
    if broken:
        raise document.error("strategy", broken[0])
    return OpenPlan(plan, model, cluster)
