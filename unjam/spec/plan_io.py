"""Plan files: a `Plan` as YAML that a person can read and edit, and back without a loss."""

from __future__ import annotations

from typing import Any

from unjam.spec.clusters import cluster_from_mapping
from unjam.spec.documents import Document, dump_yaml, parse_mapping, quoted
from unjam.spec.fields import nearest, read_dataclass, to_plain
from unjam.spec.files import StrPath, read_mapping, write_text
from unjam.spec.jobs import MOST
from unjam.spec.plan import PLAN_VERSION, Plan
from unjam.spec.strategy import RECOMPUTE

# What a reader looks for first comes first; numbers of the cluster and the model come last.
_ORDER = ("version", "strategy", "job", "prediction", "model_name", "model_config", "cluster")

_HEADER = """\
# unjam plan: how {model} trains on {devices} devices of {cluster}.
# {strategy}, predicted {step:.4g} s a step, {rate:.5g} tokens/s per device.
# Use it with: unjam simulate PLAN.yaml, unjam export PLAN.yaml
"""

_AT_LEAST_ONE = (
    *(f"strategy.{x}" for x in ("tp", "pp", "vpp", "ep", "etp", "cp", "dp", "mbs")),
    *(f"job.{x}" for x in ("devices", "seq_len", "global_batch", "imbalance")),
)


def plan_to_yaml(plan: Plan) -> str:
    """The text of a plan file; ``plan_from_yaml(plan_to_yaml(p), ...) == p``."""
    mapping = to_plain(plan)
    header = _HEADER.format(
        model=_word(plan.model_name),
        devices=plan.job.devices,
        cluster=_word(plan.cluster.get("name", "a cluster")),
        strategy=plan.strategy,
        step=plan.prediction.step_seconds,
        rate=plan.prediction.tokens_per_second_per_device,
    )
    return header + "".join("\n" + dump_yaml({name: mapping[name]}) for name in _ORDER)


def _word(name: object) -> str:
    """A name inside a comment, where a line break would end the comment."""
    return "".join(x if x.isprintable() else "?" for x in str(name))


def plan_from_yaml(text: str, file: str = "plan") -> Plan:
    """A plan from the text of a plan file (YAML or JSON); `file` is its name in messages.

    Raises:
        InputError: the text is malformed, of an unknown version, or has a bad field.
    """
    return plan_of(parse_mapping(text, file))


def save_plan(path: StrPath, plan: Plan) -> None:
    """Write a plan file whole or not at all."""
    write_text(path, plan_to_yaml(plan))


def load_plan(path: StrPath) -> Plan:
    """Read a plan file.

    Raises:
        InputError: it cannot be read, is of an unknown version, or has a bad field.
    """
    return plan_of(read_mapping(path))


def plan_of(document: Document) -> Plan:
    """The plan that a document holds.

    Raises:
        InputError: it is of an unknown version, or has a bad field.
    """
    _check_version(document)
    plan = read_dataclass(Plan, document.mapping, "", document)
    _check_ranges(plan, document)
    cluster_from_mapping(plan.cluster, file=document.file, lines=document.lines, prefix="cluster")
    return plan


def _check_version(document: Document) -> None:
    """Refuse another version before its fields are found wrong one by one."""
    if not {"strategy", "job"} & document.mapping.keys():
        raise document.error("", "not a plan: give a file written by 'unjam plan --out'")
    version = document.mapping.get("version")
    if version is None:
        raise document.error("version", f"missing: add 'version: {PLAN_VERSION}'")
    if version != PLAN_VERSION or isinstance(version, bool):
        raise document.error(
            "version",
            f"{quoted(version)} is unknown, this unjam reads {PLAN_VERSION}: "
            "make the plan again with 'unjam plan', or use the unjam that wrote it",
        )


def _check_ranges(plan: Plan, document: Document) -> None:
    """Ranges of single fields; whether a strategy is valid as a whole is the search's business."""
    strategy: Any = plan.strategy
    for path in _AT_LEAST_ONE:
        section, name = path.split(".")
        value = getattr(getattr(plan, section), name)
        if not 1 <= value <= MOST:
            raise document.error(path, f"must be from 1 to {MOST}, not {quoted(value)}")
    if not 0 <= strategy.zero <= 3:
        raise document.error("strategy.zero", f"must be 0, 1, 2 or 3, not {strategy.zero}")
    if strategy.recompute not in RECOMPUTE:
        fix = nearest(strategy.recompute, RECOMPUTE)
        raise document.error(
            "strategy.recompute", f"{quoted(strategy.recompute)} is unknown; {fix}"
        )
    if plan.prediction.peak_memory_rank < 0:
        value = plan.prediction.peak_memory_rank
        raise document.error("prediction.peak_memory_rank", f"must not be negative, not {value}")
