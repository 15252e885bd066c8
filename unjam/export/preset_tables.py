"""Tables of models and clusters for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from unjam.spec.cluster import ClusterSpec
from unjam.spec.model import ModelSpec

GIB = 2.0**30


def _table(title: str, left: Sequence[str], right: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def models_table(models: Sequence[ModelSpec]) -> Table:
    """One model a row."""
    table = _table(
        "Model presets", ("name", "family"), ("total B", "activated B", "layers", "MTP", "experts")
    )
    for x in models:
        counts, moe = x.params, x.moe
        table.add_row(
            x.name,
            x.family,
            f"{counts.total_params / 1e9:.2f}",
            f"{counts.activated_params / 1e9:.2f}",
            str(len(x.layers)),
            str(len(x.mtp)),
            f"{moe.experts}, top {moe.top_k}" if moe else "-",
        )
    return table


def parameters_table(model: ModelSpec) -> Table:
    """Exact parameter counts of one model, in the conventions in use."""
    table = _table(f"{model.name} ({model.family})", ("parameters",), ("count",))
    for name, value in asdict(model.params).items():
        table.add_row(name, f"{value:,}")
    return table


def clusters_table(clusters: Sequence[ClusterSpec]) -> Table:
    """One cluster a row."""
    head = ("BF16 TFLOP/s", "GiB", "HBM TB/s", "devices a node")
    table = _table("Cluster presets", ("name", "device"), head)
    table.add_column("links, GB/s a device, one way")
    for x in clusters:
        links = ", ".join(f"{t.name} {t.bytes_per_second / 1e9:g}" for t in x.tiers)
        table.add_row(
            x.name,
            x.device.name,
            f"{x.device.peak_flops.get('bf16', 0.0) / 1e12:.1f}",
            f"{x.device.memory_bytes / GIB:.0f}",
            f"{x.device.memory_bytes_per_second / 1e12:.2f}",
            str(x.devices_per_node),
            links,
        )
    return table


def cluster_table(cluster: ClusterSpec, mapping: Mapping[str, Any]) -> Table:
    """Every number of one cluster with its source; `mapping` is its form as YAML."""
    table = _table(f"{cluster.name}: calibrated on {cluster.calibrated_on}", ("field", "value"))
    table.add_column("source", overflow="fold")
    for path, value in _leaves(mapping):
        if path.split(".")[0] not in {"sources", "calibrated_on", "name"}:
            shown = f"{value:.12g}" if isinstance(value, float) else f"{value}"
            table.add_row(path, shown, _source(cluster.sources, path))
    return table


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Dotted paths and plain values of nested mappings and lists."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{i}")
    else:
        yield path, value


def _source(sources: Mapping[str, str], path: str) -> str:
    """The source of a field, else that of the nearest field that holds it."""
    while path:
        if path in sources:
            return sources[path]
        path = path.rpartition(".")[0]
    return ""
