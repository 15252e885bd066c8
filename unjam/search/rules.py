"""What makes a strategy invalid: the rules of Megatron and MindSpeed, and unjam's own.

A rule is data: a name, who makes it, a predicate over arrays of strategies, and a sentence for one
strategy. The search counts violations, `--explain` prints the sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unjam.cost.batch import RECOMPUTE_NAMES, IntArray
from unjam.spec.cluster import ClusterSpec
from unjam.spec.errors import InputError
from unjam.spec.fields import nearest
from unjam.spec.layout import check_layout, parse_layout
from unjam.spec.model import DenseFFN, ModelSpec
from unjam.spec.strategy import (
    DISPATCHERS,
    OVERLAPPING,
    RECOMPUTE,
    SCHEDULES,
    JobSpec,
    Strategy,
)

Fields = Mapping[str, IntArray]
BoolArray = npt.NDArray[np.bool_]
Origin = Literal["Megatron", "MindSpeed", "unjam"]

# A step of this many passes lasts minutes on any device; beyond it, graphs of slots fill memory.
MOST_PASSES = 1 << 17


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: short, for counts.
        origin: whose rule it is.
        violated: which strategies break it.
        reason: a sentence with ``{tp}``, ``{pp}``, ... to fill in, and how to mend it.
    """

    name: str
    origin: Origin
    violated: Callable[[Fields], BoolArray]
    reason: str


def first_violation(rules: Sequence[Rule], fields: Fields) -> IntArray:
    """Index of the first rule that each strategy breaks, -1 if none, ``[N]``."""
    out = np.full(len(fields["tp"]), -1, dtype=np.int64)
    open_rows = np.arange(len(out))
    view = dict(fields)
    for index, rule in enumerate(rules):
        broken = np.broadcast_to(rule.violated(view), open_rows.shape)
        if broken.any():
            out[open_rows[broken]] = index
            open_rows = open_rows[~broken]
            view = {name: column[~broken] for name, column in view.items()}
    return out


def _schedule(f: Fields, name: str) -> BoolArray:
    return np.asarray(f["schedule"] == [*SCHEDULES].index(name))  # type: ignore[arg-type]


def _overlaps(f: Fields) -> BoolArray:
    return np.asarray([x in OVERLAPPING for x in SCHEDULES])[f["schedule"]]


def _recomputes(f: Fields, *modules: str) -> BoolArray:
    wanted = [bool(RECOMPUTE[x] & set(modules)) for x in RECOMPUTE_NAMES]
    return np.asarray(wanted)[f["recompute"]]


def rules(model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> tuple[Rule, ...]:
    """All rules for this model, cluster and job, cheap and general ones first."""
    return (
        *_size_rules(cluster, job),
        *_model_rules(model),
        *_expert_rules(model, cluster),
        *_schedule_rules(model),
        *_recompute_rules(model),
    )


def _size_rules(cluster: ClusterSpec, job: JobSpec) -> list[Rule]:
    devices, batch, seq = job.devices, job.global_batch, job.seq_len
    return [
        Rule(
            "devices do not divide", "Megatron",
            lambda f: f["tp"] * f["pp"] * f["cp"] * np.maximum(f["dp"], 0) != devices,
            f"TP {{tp}} x PP {{pp}} x CP {{cp}} x DP {{dp}} is not {devices} devices: "
            "let their product divide the devices",
        ),
        Rule(
            "global batch does not divide", "Megatron",
            lambda f: f["micro_batches"] == 0,
            f"global batch {batch} is no multiple of MBS {{mbs}} x DP {{dp}}: "
            "use --global-batch {nearest}, or other degrees",
        ),
        Rule(
            "TP wider than a node", "unjam",
            lambda f: f["tp"] > cluster.devices_per_node,
            f"TP {{tp}} is wider than a node of {cluster.devices_per_node} devices",
        ),
        Rule(
            "sequence does not divide", "Megatron",
            lambda f: (seq % np.where(f["cp"] > 1, 2 * f["cp"], 1) != 0)
            | (seq % (f["tp"] * f["cp"]) != 0),
            f"sequence {seq} must divide by TP {{tp}} x CP {{cp}}, and by 2 x CP where CP > 1",
        ),
        Rule(
            "ZeRO-2 and 3 with a pipeline", "unjam",
            lambda f: (f["zero"] > 1) & (f["pp"] > 1),
            "ZeRO-{zero} moves gradients in every micro-batch: use ZeRO-1 with PP {pp}",
        ),
    ]  # fmt: skip


def _model_rules(model: ModelSpec) -> list[Rule]:
    attention = [x.attention for x in model.layers if x.attention]
    heads = sorted({x.heads for x in attention})
    kv_heads = sorted({x.kv_heads for x in attention if x.kind != "mla"})
    widths = sorted({x.ffn.width for x in model.layers if isinstance(x.ffn, DenseFFN)})
    recurrent = any(x.kind in {"linear", "mamba"} for x in attention)
    layers = len(model.layers)
    return [
        Rule(
            "heads do not divide by TP", "Megatron",
            lambda f: np.logical_or.reduce([n % f["tp"] != 0 for n in heads] or [f["tp"] < 0]),
            f"{'/'.join(map(str, heads))} attention heads do not divide by TP {{tp}}",
        ),
        Rule(
            "key/value heads do not fit TP", "Megatron",
            lambda f: np.logical_or.reduce(
                [(n % f["tp"] != 0) & (f["tp"] % n != 0) for n in kv_heads] or [f["tp"] < 0]
            ),
            f"{'/'.join(map(str, kv_heads))} key/value heads are neither a multiple nor a divisor "
            "of TP {tp}",
        ),
        Rule(
            "widths do not divide by TP", "Megatron",
            lambda f: np.logical_or.reduce([n % f["tp"] != 0 for n in [model.hidden, *widths]]),
            f"hidden {model.hidden} or dense FFN widths {widths} do not divide by TP {{tp}}",
        ),
        Rule(
            "recurrent layers with CP", "unjam",
            lambda f: recurrent & (f["cp"] > 1),
            "linear attention and Mamba layers carry a state along the sequence: use CP 1",
        ),
        Rule(
            "more stages than layers", "Megatron",
            lambda f: f["pp"] * f["vpp"] > layers + 2,
            f"PP {{pp}} x VPP {{vpp}} stages for {layers} layers, embedding and head",
        ),
    ]  # fmt: skip


def _expert_rules(model: ModelSpec, cluster: ClusterSpec) -> list[Rule]:
    experts = model.moe.experts if model.moe else 1
    width = model.moe.expert_width if model.moe else 1
    node = cluster.devices_per_node
    return [
        Rule(
            "experts do not divide by EP", "Megatron",
            lambda f: experts % f["ep"] != 0,
            f"{experts} routed experts do not divide by EP {{ep}}"
            if model.moe
            else "a dense model has no experts: use EP 1",
        ),
        Rule(
            "expert width does not divide by ETP", "Megatron",
            lambda f: width % f["etp"] != 0,
            f"expert width {width} does not divide by ETP {{etp}}",
        ),
        Rule(
            "EP x ETP does not divide the ranks of a stage", "Megatron",
            lambda f: f["tp"] * f["cp"] * f["dp"] % np.maximum(f["ep"] * f["etp"], 1) != 0,
            "EP {ep} x ETP {etp} does not divide the TP {tp} x CP {cp} x DP {dp} ranks of a stage",
        ),
        Rule(
            "hierarchical dispatch inside a node", "unjam",
            lambda f: (f["dispatcher"] > 0)
            & ((f["ep"] * f["etp"] <= node) | (f["ep"] * f["etp"] % node != 0)),
            f"hierarchical dispatch needs EP {{ep}} x ETP {{etp}} to span whole nodes of {node} "
            "devices, more than one: use dispatcher flat",
        ),
    ]  # fmt: skip


def _schedule_rules(model: ModelSpec) -> list[Rule]:
    adaptive = _overlaps

    return [
        Rule(
            "chunks need a pipeline", "Megatron",
            lambda f: (f["vpp"] > 1) & (f["pp"] == 1),
            "VPP {vpp} needs PP > 1",
        ),
        Rule(
            "1F1B with chunks", "Megatron",
            lambda f: _schedule(f, "1f1b") & (f["vpp"] > 1),
            "1F1B runs one chunk per rank: use interleaved with VPP {vpp}",
        ),
        Rule(
            "interleaved without chunks", "Megatron",
            lambda f: _schedule(f, "interleaved") & (f["vpp"] == 1),
            "interleaved with VPP 1 is 1F1B: use 1f1b, or VPP 2",
        ),
        Rule(
            "last group smaller than PP", "Megatron",
            lambda f: ~_schedule(f, "1f1b") & (f["pp"] > 1) & (f["micro_batches"] % f["pp"] != 0),
            "{micro_batches} micro-batches are no multiple of PP {pp}: the last group of an "
            "interleaved schedule would be too small",
        ),
        Rule(
            "more passes than a simulation holds", "unjam",
            lambda f: f["pp"] * f["vpp"] * f["micro_batches"] > MOST_PASSES,
            f"PP {{pp}} x VPP {{vpp}} x {{micro_batches}} micro-batches are over {MOST_PASSES} "
            "passes: raise MBS or DP, or lower --global-batch",
        ),
        Rule(
            "EP overlap needs EP", "Megatron",
            lambda f: adaptive(f) & (f["ep"] == 1),
            "adaptive hides EP communication and EP is 1: use 1f1b or interleaved",
        ),
        Rule(
            "EP overlap needs chunks", "Megatron",
            lambda f: adaptive(f) & (f["pp"] > 1) & (f["vpp"] == 1),
            "adaptive needs VPP > 1 when PP is {pp}",
        ),
        Rule(
            "EP overlap with ETP", "MindSpeed",
            lambda f: adaptive(f) & (f["etp"] > 1),
            "adaptive needs ETP 1, not {etp}",
        ),
        Rule(
            "EP overlap with several MTP modules", "Megatron",
            lambda f: adaptive(f) & (len(model.mtp) > 1),
            f"adaptive runs at most one MTP module, the model has {len(model.mtp)}",
        ),
        Rule(
            "EP overlap with few micro-batches", "MindSpeed",
            lambda f: adaptive(f) & (f["micro_batches"] // f["pp"] < 2),
            "adaptive needs two micro-batches per pipeline rank, not {micro_batches} for PP {pp}: "
            "raise --global-batch",
        ),
    ]  # fmt: skip


def _recompute_rules(model: ModelSpec) -> list[Rule]:
    useful = [RECOMPUTE[x] & model.recomputable for x in RECOMPUTE_NAMES]
    repeats = np.array([x in useful[:i] for i, x in enumerate(useful)])
    return [
        Rule(
            "EP overlap with recomputed MoE", "Megatron",
            lambda f: _overlaps(f) & _recomputes(f, "full", "moe"),
            "adaptive cannot recompute whole layers or the MoE, which dispatch again",
        ),
        Rule(
            "recomputation that adds nothing", "unjam",
            lambda f: repeats[f["recompute"]],
            "this policy recomputes no more of this model than a leaner one does",
        ),
    ]  # fmt: skip


def check_job(model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> tuple[str, str] | None:
    """What no strategy can mend: the job's field and what is wrong with it; None if all is well."""
    if job.devices > cluster.max_devices:
        most = cluster.max_devices
        return "devices", f"{job.devices}: {cluster.name} has at most {most}; use at most {most}"
    known = sorted(cluster.device.peak_flops)
    if job.dtype not in known:
        return "dtype", f"{job.dtype}: {cluster.device.name} has no such peak; use {known[0]}"
    if model.moe:
        most_skew = model.moe.experts / model.moe.top_k
        if job.imbalance > max(most_skew, 1.0):
            cause = f"an expert of {model.moe.experts} with top-{model.moe.top_k} routing"
            return "imbalance", f"{job.imbalance:g}: {cause} gets at most {most_skew:g} x the mean"
    return None


def require_job(model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> None:
    """Raise an `InputError` that names the option where `check_job` finds something wrong."""
    wrong = check_job(model, cluster, job)
    if wrong:
        raise InputError(f"--{wrong[0]} {wrong[1]}")


def explain_invalid(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, strategy: Strategy
) -> list[str]:
    """Every rule that `strategy` breaks, in words; [] if it is valid."""
    values: dict[str, Any] = {
        name: getattr(strategy, name)
        for name in ("tp", "pp", "vpp", "ep", "etp", "cp", "dp", "mbs", "zero")
    }
    small = [f"{name.upper()} {value}: must be at least 1"
             for name, value in values.items() if value < 1 and name != "zero"]  # fmt: skip
    if small:
        return small
    if not 0 <= strategy.zero <= 3:
        return [f"ZeRO {strategy.zero}: use 0, 1, 2 or 3"]
    unknown = _unknown_names(strategy)
    if unknown:
        return unknown
    per_step = strategy.dp * strategy.mbs
    groups, rest = divmod(job.global_batch, per_step)
    values["micro_batches"] = 0 if rest else groups
    values["nearest"] = " or ".join(str(x * per_step) for x in (groups, groups + 1) if x)
    values["dispatcher"] = DISPATCHERS.index(strategy.dispatcher)
    values["schedule"] = SCHEDULES.index(strategy.schedule)
    values["recompute"] = RECOMPUTE_NAMES.index(strategy.recompute)
    numbers = {name: value for name, value in values.items() if name != "nearest"}
    fields = {name: np.array([value], dtype=np.int64) for name, value in numbers.items()}
    broken = [x for x in rules(model, cluster, job) if np.any(x.violated(fields))]
    out = [f"{x.reason.format(**values)} ({x.origin})" for x in broken]
    if strategy.layout:
        out += _layout_reason(model, strategy)
    return out


def _unknown_names(strategy: Strategy) -> list[str]:
    allowed: dict[str, Sequence[str]] = {
        "dispatcher": DISPATCHERS,
        "schedule": SCHEDULES,
        "recompute": RECOMPUTE_NAMES,
    }
    return [
        f"{name} {getattr(strategy, name)!r} is unknown; {nearest(getattr(strategy, name), values)}"
        for name, values in allowed.items()
        if getattr(strategy, name) not in values
    ]


def _layout_reason(model: ModelSpec, strategy: Strategy) -> list[str]:
    try:
        stages = parse_layout(strategy.layout)
    except InputError as error:
        return [str(error)]
    wrong = check_layout(stages, len(model.layers), len(model.mtp), strategy.pp, strategy.vpp)
    return [f"layout {strategy.layout} {wrong} (Megatron)"] if wrong else []
