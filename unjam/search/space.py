"""The space of strategies: every combination of degrees and options, and which are valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from unjam.cost.batch import RECOMPUTE_NAMES, Batch, IntArray
from unjam.search.rules import Rule, first_violation
from unjam.spec.cluster import ClusterSpec
from unjam.spec.errors import InputError
from unjam.spec.fields import nearest
from unjam.spec.jobs import MOST
from unjam.spec.model import ModelSpec
from unjam.spec.strategy import DISPATCHERS, SCHEDULES, JobSpec, Strategy

VIRTUAL_CHUNKS = range(1, 13)
MICRO_BATCH_SIZES = (1, 2, 3, 4, 6, 8)
# Beyond CP 8, a rank should keep enough tokens to be worth a rank.
CONTEXT_DEGREES = (1, 2, 4, 8, 16, 32, 64, 128)
LEAST_CONTEXT_TOKENS = 4096
SHAPE = ("tp", "pp", "vpp", "ep", "etp", "cp", "mbs")
OPTIONS = ("recompute", "dispatcher", "schedule", "zero")
FIXABLE = (*SHAPE, "dp", *OPTIONS)
_NAMES: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE_NAMES,
    "dispatcher": DISPATCHERS,
    "schedule": SCHEDULES,
}

Fixed = Mapping[str, int | str]


@dataclass(frozen=True)
class Space:
    """The valid strategies of a job.

    Attributes:
        valid: them, as a batch.
        raw: how many combinations there are.
        invalid_by_reason: how many of them break each rule (the first one that they break).
    """

    valid: Batch
    raw: int
    invalid_by_reason: dict[str, int]


def _divisors(n: int, most: int) -> list[int]:
    return [d for d in range(1, min(n, most) + 1) if n % d == 0]


def _choices(model: ModelSpec, cluster: ClusterSpec, job: JobSpec) -> dict[str, Sequence[int]]:
    experts = model.moe.experts if model.moe else 1
    powers = [1 << i for i in range(6)]
    degrees = [x for x in powers if x <= cluster.devices_per_node and job.devices % x == 0]
    most_stages = min(len(model.layers) + 2, 64)
    return {
        "tp": degrees or [1],
        "pp": _divisors(job.devices, most_stages),
        "vpp": VIRTUAL_CHUNKS,
        "ep": _divisors(experts, job.devices),
        "etp": degrees if model.moe else [1],
        "cp": _context_degrees(job),
        "mbs": MICRO_BATCH_SIZES,
        "recompute": range(len(RECOMPUTE_NAMES)),
        "dispatcher": range(len(DISPATCHERS)) if model.moe else [0],
        "schedule": range(len(SCHEDULES)),
        "zero": [1, 3],
    }


def _context_degrees(job: JobSpec) -> list[int]:
    most = max(8, job.seq_len // LEAST_CONTEXT_TOKENS)
    return [x for x in CONTEXT_DEGREES if x <= most and job.devices % x == 0]


def check_values(option: str, given: Fixed, also: Sequence[str] = ()) -> None:
    """Raise unless every key is a degree or option and has a possible value.

    Args:
        option: what the user typed them behind, for messages.
        given: degrees and options by name.
        also: further keys that are allowed, with any value.

    Raises:
        InputError: one line that names the key, with a fix.
    """
    keys = (*FIXABLE, *also)
    for key, value in given.items():
        if key not in keys:
            raise InputError(f"{option} {key}: no such degree or option; {nearest(key, keys)}")
        names = _NAMES.get(key)
        if names is not None:
            if value not in names:
                raise InputError(f"{option} {key}={value}: unknown; {nearest(str(value), names)}")
        elif key == "zero":
            if value not in range(4):
                raise InputError(f"{option} zero={value}: use 0, 1, 2 or 3")
        elif key not in also and (not isinstance(value, int) or not 1 <= value <= MOST):
            raise InputError(f"{option} {key}={value}: must be an integer from 1 to {MOST}")


def fix_choices(choices: dict[str, Sequence[int]], fixed: Fixed) -> dict[str, Sequence[int]]:
    """Replace choices by the values that the user fixed (``dp`` is checked later)."""
    check_values("--fix", fixed)
    out = dict(choices)
    for key, value in fixed.items():
        if key in _NAMES:
            out[key] = [_NAMES[key].index(str(value))]
        elif key != "dp":
            out[key] = [int(value)]
    return out


def enumerate_space(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    rules: Sequence[Rule],
    fixed: Fixed,
) -> Space:
    """All combinations; options only ever add violations, so hopeless shapes go first."""
    choices = fix_choices(_choices(model, cluster, job), fixed)
    shapes = _shapes(choices, job, fixed)
    option_rows = np.stack(_grid(choices, OPTIONS), axis=1)
    raw = len(shapes["tp"]) * len(option_rows)
    reasons: Counter[str] = Counter()
    hopeful = _hopeful(shapes, choices["schedule"], rules, reasons, len(option_rows))
    kept: list[dict[str, IntArray]] = []
    for row in option_rows:
        candidate = {**hopeful, **_constant_options(row, len(hopeful["tp"]))}
        broken = first_violation(rules, candidate)
        _count(broken, rules, reasons, 1)
        good = broken < 0
        kept.append({k: v[good] for k, v in candidate.items()})
    columns = {
        f.name: np.concatenate([x[f.name] for x in kept]) if kept else np.zeros(0, np.int64)
        for f in fields(Batch)
    }
    return Space(Batch(**columns), raw, dict(reasons.most_common()))


def nearest_invalid(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    rules: Sequence[Rule],
    fixed: Fixed,
) -> Strategy | None:
    """The combination that breaks the fewest rules, for a job that has no valid one."""
    choices = fix_choices(_choices(model, cluster, job), fixed)
    shapes = _shapes(choices, job, fixed)
    n = len(shapes["tp"])
    best, fewest = None, len(rules) + 1
    for schedule in choices["schedule"] if n else ():
        neutral = [choices["recompute"][0], choices["dispatcher"][0], schedule, choices["zero"][0]]
        candidate = {**shapes, **_constant_options(np.array(neutral), n)}
        broken = np.sum([np.broadcast_to(x.violated(candidate), n) for x in rules], axis=0)
        i = int(broken.argmin())
        if broken[i] < fewest:
            fewest = broken[i]
            columns = {f.name: candidate[f.name][i : i + 1] for f in fields(Batch)}
            best = Batch(**columns).strategy(0, "")
    return best


def _grid(choices: Mapping[str, Sequence[int]], names: Sequence[str]) -> list[IntArray]:
    axes = np.meshgrid(*(np.asarray(choices[x], np.int64) for x in names), indexing="ij")
    return [x.ravel() for x in axes]


def _shapes(
    choices: Mapping[str, Sequence[int]], job: JobSpec, fixed: Fixed
) -> dict[str, IntArray]:
    """All combinations of degrees, with the DP and the micro-batches that follow."""
    shapes = dict(zip(SHAPE, _grid(choices, SHAPE), strict=True))
    _add_derived(shapes, job)
    if "dp" in fixed:
        wanted = shapes["dp"] == fixed["dp"]
        shapes = {k: v[wanted] for k, v in shapes.items()}
    return shapes


def _add_derived(shapes: dict[str, IntArray], job: JobSpec) -> None:
    used = shapes["tp"] * shapes["pp"] * shapes["cp"]
    shapes["dp"] = np.where(job.devices % used == 0, job.devices // used, 0)
    per_step = shapes["dp"] * shapes["mbs"]
    divides = (per_step > 0) & (job.global_batch % np.maximum(per_step, 1) == 0)
    shapes["micro_batches"] = np.where(divides, job.global_batch // np.maximum(per_step, 1), 0)


def _constant_options(row: IntArray, n: int) -> dict[str, IntArray]:
    return {name: np.full(n, value) for name, value in zip(OPTIONS, row, strict=True)}


def _hopeful(
    shapes: dict[str, IntArray],
    schedules: Sequence[int],
    rules: Sequence[Rule],
    reasons: Counter[str],
    weight: int,
) -> dict[str, IntArray]:
    """Shapes that are valid with some schedule and otherwise neutral options."""
    n = len(shapes["tp"])
    alive = np.zeros(n, dtype=bool)
    first = np.full(n, -1)
    for schedule in schedules:
        # No recomputation, flat dispatch and ZeRO-1 break no rule by themselves.
        neutral = _constant_options(np.array([0, 0, schedule, 1]), n)
        broken = first_violation(rules, {**shapes, **neutral})
        alive |= broken < 0
        first = np.where(first < 0, broken, first)
    _count(first[~alive], rules, reasons, weight)
    return {k: v[alive] for k, v in shapes.items()}


def _count(broken: IntArray, rules: Sequence[Rule], reasons: Counter[str], weight: int) -> None:
    for index, count in zip(*np.unique(broken[broken >= 0], return_counts=True), strict=True):
        reasons[rules[int(index)].name] += int(count) * weight
