"""Plans as YAML files; what is written is read back exactly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml

from unjam.spec.documents import Document, parse_mapping
from unjam.spec.files import read_text, write_text
from unjam.spec.plan import PLAN_VERSION, Plan, Prediction
from unjam.spec.strategy import DISPATCHERS, RECOMPUTE, SCHEDULES, Dtype, JobSpec, Strategy

_HEADER = """\
# A plan of unjam: a parallel strategy with everything needed to simulate, train or export it.
# unjam simulate THIS_FILE | unjam export THIS_FILE --to megatron
"""
_NAMES: dict[str, tuple[str, ...]] = {
    "dispatcher": DISPATCHERS,
    "schedule": SCHEDULES,
    "recompute": tuple(RECOMPUTE),
    "dtype": get_args(Dtype),
}


def plan_to_yaml(plan: Plan) -> str:
    """The plan as YAML, the strategy first; floats keep every digit."""
    content = {
        "version": plan.version,
        "strategy": dataclasses.asdict(plan.strategy),
        "job": dataclasses.asdict(plan.job),
        "prediction": dataclasses.asdict(plan.prediction),
        "model_name": plan.model_name,
        "model_config": _plain(plan.model_config),
        "cluster": _plain(plan.cluster),
    }
    return _HEADER + yaml.dump(content, sort_keys=False, allow_unicode=True, width=100)


def _plain(value: Any) -> Any:
    """Mappings and sequences as dict and list, which YAML writes without tags."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return value


def plan_from_yaml(text: str, file: str) -> Plan:
    """Read a plan from the text of `file`.

    Raises:
        InputError: the first field that is missing, unknown or of the wrong kind.
    """
    document = parse_mapping(text, file)
    version = document.mapping.get("version")
    if version != PLAN_VERSION:
        fix = "make the plan again with this version of unjam"
        raise document.error("version", f"{version!r} is not {PLAN_VERSION}: {fix}")
    top = _checked(document, document.mapping, "", Plan)
    for name in ("model_config", "cluster"):
        if not isinstance(top[name], Mapping):
            raise document.error(name, "must be a mapping")
    if not isinstance(top["model_name"], str):
        raise document.error("model_name", "must be a text")
    return Plan(
        model_name=top["model_name"],
        model_config=top["model_config"],
        cluster=top["cluster"],
        job=_struct(document, "job", JobSpec),
        strategy=_struct(document, "strategy", Strategy),
        prediction=_struct(document, "prediction", Prediction),
        version=version,
    )


def save_plan(path: str | Path, plan: Plan) -> None:
    """Write a plan, whole or not at all."""
    write_text(path, plan_to_yaml(plan))


def load_plan(path: str | Path) -> Plan:
    """Read a plan file; see `plan_from_yaml`."""
    return plan_from_yaml(read_text(path), str(path))


def _checked(document: Document, mapping: Any, prefix: str, kind: type) -> dict[str, Any]:
    """The mapping if its keys are the fields of `kind`."""
    if not isinstance(mapping, Mapping):
        raise document.error(prefix, "must be a mapping")
    dot = f"{prefix}." if prefix else ""
    names = [f.name for f in dataclasses.fields(kind)]
    for key in mapping:
        if key not in names:
            raise document.error(f"{dot}{key}", f"unknown; known: {', '.join(names)}")
    for name in names:
        if name not in mapping:
            raise document.error(f"{dot}{name}", "is missing")
    return dict(mapping)


def _struct(document: Document, prefix: str, kind: type) -> Any:
    values = _checked(document, document.mapping[prefix], prefix, kind)
    types = {f.name: str(f.type) for f in dataclasses.fields(kind)}
    return kind(**{k: _value(document, f"{prefix}.{k}", types[k], v) for k, v in values.items()})


def _value(document: Document, path: str, kind: str, value: Any) -> Any:
    """Check one value against the annotation of its field."""
    name = path.rpartition(".")[2]
    if kind.startswith("Mapping"):
        if not isinstance(value, Mapping):
            raise document.error(path, "must be a mapping of numbers")
        return {str(k): _value(document, f"{path}.{k}", "float", v) for k, v in value.items()}
    if kind == "float":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise document.error(path, f"{value!r}: must be a number")
        return float(value)
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            raise document.error(path, f"{value!r}: must be a whole number")
        least = 0 if name in {"zero", "peak_memory_rank"} else 1
        if value < least:
            raise document.error(path, f"{value}: must be at least {least}")
        return value
    if not isinstance(value, str):
        raise document.error(path, f"{value!r}: must be a text")
    if name in _NAMES and value not in _NAMES[name]:
        raise document.error(path, f"{value!r}: use one of {', '.join(_NAMES[name])}")
    return value
