"""Cluster files: presets or a user's YAML as a checked `ClusterSpec`, and back.

A number is written plain, or as ``{value: 1e12, source: "datasheet"}``; sources are kept by
dotted path. Every number of a preset has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from unjam.spec.cluster import ClusterSpec, Device
from unjam.spec.documents import Document, join, quoted
from unjam.spec.errors import InputError
from unjam.spec.fields import nearest, read_dataclass, to_plain
from unjam.spec.files import read_mapping
from unjam.spec.names import looks_like_path, preset_folder, preset_names, unknown_name

_MOST = 10_000_000  # of anything that is counted: products of such counts stay within int64
_DTYPES = ("bf16", "fp8", "fp32")
_TABLES = ("peak_flops", "matmul_efficiency", "grouped_matmul_efficiency")
_SHARES = {
    "matmul_efficiency", "grouped_matmul_efficiency", "attention_efficiency",
    "attention_backward_efficiency", "vector_efficiency", "efficiency",
}  # fmt: skip
_RATES = {"bytes_per_second", "memory_bytes_per_second", "peak_flops"}
_LEAST_RATE, _LEAST_SHARE, _LARGEST = 1e3, 1e-4, 1e21  # within them every time is finite
_MAY_BE_ZERO = {
    "span", "latency_seconds", "half_bytes", "reserved_bytes", "half_rows", "kernel_seconds",
    "overlap_slowdown",
}  # fmt: skip


def cluster_presets() -> list[str]:
    """Names of the clusters that come with the package."""
    return preset_names("clusters", ".yaml")


def load_cluster(name_or_path: str) -> ClusterSpec:
    """A cluster by preset name, else from a YAML or JSON file.

    Raises:
        InputError: unknown name (suggests the nearest), or a file that does not describe one.
    """
    known = cluster_presets()
    if name_or_path.lower() in known:
        path = str(preset_folder("clusters") / f"{name_or_path.lower()}.yaml")
    elif _is_path(name_or_path):
        path = name_or_path
    else:
        raise InputError(unknown_name("cluster", name_or_path, known))
    document = read_mapping(path)
    return cluster_from_mapping(document.mapping, file=path, lines=document.lines)


def _is_path(name: str) -> bool:
    try:
        return bool(name) and looks_like_path(name)
    except (OSError, ValueError):  # longer than any file's name
        return False


def cluster_to_mapping(spec: ClusterSpec) -> dict[str, Any]:
    """The cluster as plain numbers, with a table of their sources by dotted path.

    ``cluster_from_mapping(cluster_to_mapping(spec)) == spec``.
    """
    mapping: dict[str, Any] = to_plain(spec)
    return mapping


def cluster_from_mapping(
    mapping: Mapping[str, Any],
    *,
    file: str = "cluster",
    lines: Mapping[str, int] | None = None,
    prefix: str = "",
) -> ClusterSpec:
    """Check and build a cluster.

    Args:
        mapping: the fields.
        file: name of their file, for messages.
        lines: line of each field by dotted path.
        prefix: dotted path of the mapping within the file.

    Raises:
        InputError: the first field that is missing, unknown or out of range, with file and line.
    """
    document = Document({}, file, lines or {})
    sources: dict[str, str] = {}
    plain = {
        name: value if name == "sources" else _without_sources(value, name, sources)
        for name, value in mapping.items()
    }
    if sources:
        given = plain.get("sources", {})
        plain["sources"] = {**given, **sources} if isinstance(given, Mapping) else given
    cluster = read_dataclass(ClusterSpec, plain, prefix, document)
    problem = (
        _name_problem(cluster)
        or _range_problem(cluster)
        or _table_problem(cluster.device)
        or _tier_problem(cluster)
    )
    if problem:
        raise document.error(join(prefix, problem[0]), problem[1])
    return cluster


def _without_sources(value: Any, path: str, sources: dict[str, str]) -> Any:
    """`value` with each ``{value, source}`` replaced by its value; notes the sources by path."""
    if isinstance(value, list):
        return [_without_sources(x, join(path, i), sources) for i, x in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"value"}:
        return value["value"]
    if value.keys() == {"value", "source"} and isinstance(value["source"], str):
        sources[path] = value["source"]
        return value["value"]
    return {k: _without_sources(v, join(path, k), sources) for k, v in value.items()}


def _numbers(cluster: ClusterSpec) -> Iterator[tuple[str, str, float]]:
    """Dotted path, field name and value of every number."""
    parts: list[tuple[str, Any]] = [("", cluster), ("device", cluster.device)]
    parts += [(f"tiers.{i}", x) for i, x in enumerate(cluster.tiers)]
    for path, part in parts:
        for name in (x.name for x in fields(part)):
            value = getattr(part, name)
            if name in _TABLES:
                yield from ((join(path, f"{name}.{k}"), name, x) for k, x in value.items())
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield join(path, name), name, value


def _name_problem(cluster: ClusterSpec) -> tuple[str, str] | None:
    if cluster.name.strip() and cluster.name.isprintable():
        return None
    return "name", f"must be a name on one line, not {quoted(cluster.name)}"


def _range_problem(cluster: ClusterSpec) -> tuple[str, str] | None:
    for path, name, value in _numbers(cluster):
        bound = _broken_bound(name, value)
        if bound:
            shown = quoted(value) if isinstance(value, int) else f"{value:g}"
            return path, f"{bound}, not {shown}"
    if cluster.device.reserved_bytes >= cluster.device.memory_bytes:
        most = f"memory_bytes {cluster.device.memory_bytes:g}"
        return "device.reserved_bytes", f"must be below {most}"
    return None


def _broken_bound(name: str, value: float) -> str | None:
    """The first bound that a number of this name breaks, in words."""
    may_be_zero, share = name in _MAY_BE_ZERO, name in _SHARES
    bounds = (
        (isinstance(value, int) and abs(value) > _MOST, f"must be at most {_MOST}"),
        (value < 0 and may_be_zero, "must not be negative"),
        (value <= 0 and not may_be_zero, "must be positive"),
        (value > _LARGEST, f"must be at most {_LARGEST:g}"),
        (value < _LEAST_RATE and name in _RATES, f"must be at least {_LEAST_RATE:g} a second"),
        (value < _LEAST_SHARE and share, f"must be at least {_LEAST_SHARE:g}"),
        (value > 1 and share, "must be at most 1 (a share of the peak)"),
        (
            value >= 1 and name == "overlap_slowdown",
            "must be below 1 (a share of the compute rate)",
        ),
    )
    return next((text for broken, text in bounds if broken), None)


def _table_problem(device: Device) -> tuple[str, str] | None:
    for name in _TABLES:
        table: Mapping[str, float] = getattr(device, name)
        for dtype in table:
            if dtype not in _DTYPES:
                return f"device.{name}.{dtype}", f"unknown dtype; {nearest(dtype, _DTYPES)}"
        if "bf16" not in table:
            return f"device.{name}.bf16", "missing: add it; the other dtypes fall back on it"
    return None


def _tier_problem(cluster: ClusterSpec) -> tuple[str, str] | None:
    """Spans must nest: devices_per_node, multiples of the one before, 0 for the whole cluster."""
    spans = [x.span for x in cluster.tiers]
    if not spans:
        return "tiers", "must list at least one tier of links"
    if spans[-1]:
        path = f"tiers.{len(spans) - 1}.span"
        return path, f"must be 0 (the whole cluster) in the outermost tier, not {spans[-1]}"
    if len(spans) > 1 and spans[0] != cluster.devices_per_node:
        wanted = f"devices_per_node {cluster.devices_per_node}"
        return "tiers.0.span", f"must equal {wanted}, not {spans[0]}"
    for i in range(1, len(spans) - 1):
        inner = spans[i - 1]
        if spans[i] <= inner or spans[i] % inner:
            wrong = quoted(spans[i])
            return f"tiers.{i}.span", f"must be a multiple of the inner span {inner}, not {wrong}"
    return None
