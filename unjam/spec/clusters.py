"""Clusters from YAML: presets of the package and files of the user.

A number is written plain, or as ``{value: 1.0e+12, source: "datasheet"}``; sources are kept by
dotted path. Every number of a preset has one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from unjam.spec.cluster import ClusterSpec, Device, LinkTier
from unjam.spec.documents import Document
from unjam.spec.errors import InputError
from unjam.spec.files import read_mapping
from unjam.spec.names import looks_like_path, preset_folder, preset_names, unknown_name

_RATES = {"peak_flops", "matmul_efficiency", "grouped_matmul_efficiency"}
_MAY_BE_ZERO = {
    "span", "latency_seconds", "half_bytes", "reserved_bytes", "half_rows", "kernel_seconds",
    "overlap_slowdown",
}  # fmt: skip
_WHOLE = {"span", "devices_per_nic", "tile", "devices_per_node", "max_devices"}


def cluster_presets() -> list[str]:
    """Names of the clusters that come with the package."""
    return preset_names("clusters", ".yaml")


def load_cluster(name_or_path: str) -> ClusterSpec:
    """A cluster by preset name or YAML path.

    Raises:
        InputError: unknown name (suggests the nearest), or a file that does not describe one.
    """
    known = cluster_presets()
    if name_or_path.lower() in known:
        path = preset_folder("clusters") / f"{name_or_path.lower()}.yaml"
    elif looks_like_path(name_or_path):
        document = read_mapping(name_or_path)
        return cluster_from_mapping(document.mapping, file=document.file, lines=document.lines)
    else:
        raise InputError(unknown_name("cluster", name_or_path, known))
    document = read_mapping(path)
    return cluster_from_mapping(document.mapping, file=path.name, lines=document.lines)


def cluster_to_mapping(cluster: ClusterSpec) -> dict[str, Any]:
    """The cluster in the form of its YAML file; `cluster_from_mapping` inverts it exactly."""

    def number(path: str, value: Any) -> Any:
        source = cluster.sources.get(path)
        return {"value": value, "source": source} if source else value

    def dump(item: Any, prefix: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for f in dataclasses.fields(item):
            value, path = getattr(item, f.name), f"{prefix}.{f.name}"
            if isinstance(value, Mapping):
                out[f.name] = {k: number(f"{path}.{k}", v) for k, v in value.items()}
            else:
                out[f.name] = number(path, value)
        return out

    return {
        "name": cluster.name,
        "calibrated_on": cluster.calibrated_on,
        "devices_per_node": number("devices_per_node", cluster.devices_per_node),
        "max_devices": number("max_devices", cluster.max_devices),
        "device": dump(cluster.device, "device"),
        "tiers": [dump(tier, f"tiers.{i}") for i, tier in enumerate(cluster.tiers)],
    }


def cluster_from_mapping(
    mapping: Mapping[str, Any], *, file: str, lines: Mapping[str, int] | None = None
) -> ClusterSpec:
    """Check and build a cluster.

    Raises:
        InputError: the first field that is missing, unknown or out of range, with file and line.
    """
    reader = _Reader(Document(dict(mapping), file, lines or {}), {})
    reader.keys(mapping, "", ClusterSpec, optional={"sources", "calibrated_on"})
    device = reader.struct(mapping["device"], "device", Device, {"overlap_slowdown"})
    raw_tiers = mapping["tiers"]
    if not isinstance(raw_tiers, list) or not raw_tiers:
        raise reader.error("tiers", "must be a list of at least one link tier")
    optional = {"devices_per_nic", "one_to_one"}
    tiers = tuple(
        reader.struct(x, f"tiers.{i}", LinkTier, optional) for i, x in enumerate(raw_tiers)
    )
    texts = {x: reader.value(x, mapping[x], str) for x in ("name", "calibrated_on") if x in mapping}
    sizes = {x: reader.value(x, mapping[x], int) for x in ("devices_per_node", "max_devices")}
    cluster = ClusterSpec(device=device, tiers=tiers, sources=reader.sources, **texts, **sizes)
    _check_tiers(cluster, reader)
    return cluster


def _check_tiers(cluster: ClusterSpec, reader: _Reader) -> None:
    spans = [x.span for x in cluster.tiers]
    if spans[-1] != 0:
        raise reader.error(f"tiers.{len(spans) - 1}.span", "the outermost tier must have span 0")
    for i, span in enumerate(spans[:-1]):
        inner = spans[i - 1] if i else 1
        if (span <= inner and not (i == 0 and span == 1)) or span % inner:
            raise reader.error(f"tiers.{i}.span", f"{span}: must be a multiple of {inner}")
    if len(spans) > 1 and spans[0] != cluster.devices_per_node:
        wrong = f"{spans[0]}: the innermost tier must span devices_per_node"
        raise reader.error("tiers.0.span", f"{wrong} ({cluster.devices_per_node})")
    bf16 = ("peak_flops", "matmul_efficiency", "grouped_matmul_efficiency")
    for name in bf16:
        if "bf16" not in getattr(cluster.device, name):
            raise reader.error(f"device.{name}.bf16", "is missing; every device needs it")


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Checks fields of one file and collects their sources."""

    document: Document
    sources: dict[str, str]

    def error(self, path: str, what: str) -> InputError:
        return self.document.error(path, what)

    def keys(self, mapping: object, prefix: str, kind: type, optional: set[str]) -> None:
        if not isinstance(mapping, Mapping):
            raise self.error(prefix, "must be a mapping of fields")
        names = {f.name for f in dataclasses.fields(kind)}
        dot = f"{prefix}." if prefix else ""
        for key in mapping:
            if key not in names:
                raise self.error(f"{dot}{key}", f"unknown; known: {', '.join(sorted(names))}")
        for name in sorted(names - optional):
            if name not in mapping:
                raise self.error(f"{dot}{name}", "is missing")

    def struct(self, mapping: Any, prefix: str, kind: type, optional: set[str]) -> Any:
        """Build a data class of numbers, texts and tables of numbers."""
        self.keys(mapping, prefix, kind, optional)
        out: dict[str, Any] = {}
        for name, raw in mapping.items():
            path = f"{prefix}.{name}"
            if name in _RATES:
                if not isinstance(raw, Mapping) or not raw:
                    raise self.error(path, "must map a dtype to a number")
                out[name] = {k: self.value(f"{path}.{k}", v, float) for k, v in raw.items()}
            elif name in {"name", "one_to_one"}:
                out[name] = self.value(path, raw, str if name == "name" else bool)
            else:
                out[name] = self.value(path, raw, int if name in _WHOLE else float)
        return kind(**out)

    def value(self, path: str, raw: Any, kind: type) -> Any:
        """One value; a number may come with its source."""
        if isinstance(raw, Mapping):
            if set(raw) != {"value", "source"} or not isinstance(raw["source"], str):
                raise self.error(path, "must be a number, or {value: ..., source: '...'}")
            self.sources[path] = raw["source"]
            raw = raw["value"]
        if kind in {str, bool}:
            if not isinstance(raw, kind):
                raise self.error(path, f"{raw!r}: must be a {kind.__name__}")
            return raw
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not math.isfinite(raw):
            raise self.error(path, f"{raw!r}: must be a finite number")
        if kind is int and raw != int(raw):
            raise self.error(path, f"{raw!r}: must be a whole number")
        self._in_range(path, raw)
        return kind(raw)

    def _in_range(self, path: str, number: float) -> None:
        name = path.split(".")[-2] if path.split(".")[-2:-1] == ["peak_flops"] else path
        leaf = next((x for x in reversed(name.split(".")) if not x.isdigit()), name)
        if number < 0 or (number == 0 and leaf not in _MAY_BE_ZERO):
            raise self.error(path, f"{number:g}: must be positive")
        if ("efficiency" in path or leaf == "overlap_slowdown") and number > 1:
            raise self.error(path, f"{number:g}: must be at most 1")
