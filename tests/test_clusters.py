"""Cluster files: presets with sources, exact round trips, and every mistake on one line."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from unjam.spec.cluster import ClusterSpec, Device, LinkTier
from unjam.spec.clusters import (
    cluster_from_mapping,
    cluster_presets,
    cluster_to_mapping,
    load_cluster,
)
from unjam.spec.documents import dump_yaml, parse_mapping
from unjam.spec.errors import InputError
from unjam.spec.published import published_runs
from unjam.spec.strategy import DISPATCHERS, RECOMPUTE, SCHEDULES

GOOD = """\
name: mine
devices_per_node: 8
max_devices: {value: 64, source: "eight nodes"}
device:
  name: box
  peak_flops:
    bf16: {value: 1e15, source: "datasheet"}
  memory_bytes: 80e9
  memory_bytes_per_second: 3e12
  reserved_bytes: 0
  matmul_efficiency: {bf16: 0.7}
  grouped_matmul_efficiency: {bf16: 0.6}
  attention_efficiency: 0.6
  attention_backward_efficiency: 0.5
  vector_efficiency: 0.8
  tile: 128
  half_rows: 100
  kernel_seconds: 4e-6
tiers:
  - {name: a, span: 8, bytes_per_second: 4e11, efficiency: 0.8, latency_seconds: 0, half_bytes: 0}
  - {name: b, span: 32, bytes_per_second: 1e11, efficiency: 0.8, latency_seconds: 0, half_bytes: 0}
  - name: slow
    span: 0
    bytes_per_second: 5e10
    efficiency: 1
    latency_seconds: 1e-5
    half_bytes: 1e6
"""
COUNTS = st.integers(1, 10_000_000)
ABOVE_0 = st.floats(1e3, 1e21)
SHARES = st.floats(1e-4, 1.0)
NAMES = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8)


def read(text: str, file: str = "c.yaml") -> ClusterSpec:
    document = parse_mapping(text, file)
    return cluster_from_mapping(document.mapping, file=file, lines=document.lines)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    shares = st.fixed_dictionaries({"bf16": SHARES}, optional={"fp8": SHARES})
    memory = draw(ABOVE_0)
    device = Device(
        name=draw(NAMES),
        peak_flops=draw(st.fixed_dictionaries({"bf16": ABOVE_0}, optional={"fp32": ABOVE_0})),
        memory_bytes=memory,
        memory_bytes_per_second=draw(ABOVE_0),
        reserved_bytes=memory * draw(st.floats(0, 0.9)),
        matmul_efficiency=draw(shares),
        grouped_matmul_efficiency=draw(shares),
        attention_efficiency=draw(SHARES),
        attention_backward_efficiency=draw(SHARES),
        vector_efficiency=draw(SHARES),
        tile=draw(COUNTS),
        half_rows=draw(st.floats(0, 1e6)),
        kernel_seconds=draw(st.floats(0, 1.0)),
        overlap_slowdown=draw(st.floats(0, 0.99)),
    )
    node = draw(st.integers(1, 1000))
    spans = draw(st.sampled_from([(node, 0), (node, node * 4, 0)]))
    tiers = tuple(
        LinkTier(
            draw(NAMES), x, draw(ABOVE_0), draw(SHARES), draw(st.floats(0, 1)),
            draw(st.floats(0, 1e9)), draw(COUNTS), draw(st.booleans()),
        )
        for x in spans
    )  # fmt: skip
    sources = draw(st.dictionaries(NAMES, st.text(max_size=8), max_size=2))
    return ClusterSpec(
        draw(NAMES), device, node, draw(COUNTS), tiers, sources, draw(st.text(max_size=9))
    )


@settings(max_examples=40)
@given(clusters())
def test_mapping_round_trip_is_exact(spec: ClusterSpec) -> None:
    mapping = cluster_to_mapping(spec)
    again = cluster_from_mapping(mapping)
    assert again == spec
    assert cluster_to_mapping(again) == mapping
    assert read(dump_yaml(mapping)) == spec


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield path, value
    for key, inner in items:
        yield from leaves(inner, f"{path}.{key}" if path else str(key))


@pytest.mark.parametrize("name", cluster_presets())
def test_every_number_of_a_preset_has_a_source(name: str) -> None:
    spec = load_cluster(name)
    mapping = cluster_to_mapping(spec)
    sources = mapping.pop("sources")
    optional = {"devices_per_nic": 1, "overlap_slowdown": 0.0}  # contract defaults, not data
    numbers = {
        path
        for path, x in leaves(mapping)
        if isinstance(x, int | float)
        and not isinstance(x, bool)
        and (path in sources or optional.get(path.split(".")[-1]) != x)
    }
    assert numbers - sources.keys() == set()
    assert sources.keys() - numbers == set()
    assert all(len(x) > 8 for x in sources.values())
    assert not any("http" in x or "/work" in x for x in sources.values())


@pytest.mark.parametrize("name", cluster_presets())
def test_presets_are_plausible_and_round_trip(name: str) -> None:
    spec = load_cluster(name)
    assert spec.name == name
    assert cluster_from_mapping(cluster_to_mapping(spec)) == spec
    assert spec.max_devices >= spec.devices_per_node
    device = spec.device
    assert device.attention_backward_efficiency <= device.attention_efficiency
    for dtype, share in device.grouped_matmul_efficiency.items():
        assert share <= device.matmul_efficiency[dtype]
    assert device.peak_flops.keys() == device.matmul_efficiency.keys()
    inner, outer = spec.tiers[0], spec.tiers[-1]
    assert inner.bytes_per_second > outer.bytes_per_second
    if name != "laptop":
        assert 2**30 < device.reserved_bytes < 0.15 * device.memory_bytes


def test_presets_hold_the_published_numbers() -> None:
    """BF16 peak, GB of memory, one-way GB/s of the first and last tier, devices a node."""
    published = {
        "a100": (312e12, 80, 300, 25, 8),
        "h100": (989.4e12, 80, 450, 50, 8),
        "h800": (989.4e12, 80, 200, 50, 8),
        "h200": (989.4e12, 141, 450, 50, 8),
        "b200": (2250e12, 180, 900, 50, 8),
        "gb200-nvl72": (2500e12, 186, 900, 50, 72),
        "mi300x": (1307.4e12, 192, 448, 50, 8),
        "atlas-800t-a2": (245.8e12, 64, 196, 25, 8),
        "cloudmatrix-384": (376e12, 64, 196, 25, 768),
    }
    assert {*published, "laptop"} == set(cluster_presets())
    for name, (peak, gigabytes, inner, outer, node) in published.items():
        spec = load_cluster(name)
        assert spec.device.peak_flops["bf16"] == pytest.approx(peak)
        assert gigabytes * 1e9 <= spec.device.memory_bytes <= gigabytes * 2**30
        assert spec.tiers[0].bytes_per_second == pytest.approx(inner * 1e9)
        assert spec.tiers[-1].bytes_per_second == pytest.approx(outer * 1e9)
        assert spec.devices_per_node == node


def test_h800_nvlink_reaches_what_deepseek_states() -> None:
    tier = load_cluster("h800").tiers[0]
    assert tier.efficiency * tier.bytes_per_second == pytest.approx(160e9, rel=0.05)


def test_fp8_only_where_the_hardware_has_it() -> None:
    without = {x for x in cluster_presets() if "fp8" not in load_cluster(x).device.peak_flops}
    assert without == {"a100", "atlas-800t-a2", "cloudmatrix-384", "laptop"}


# A user's file


def test_sources_come_inline_or_as_a_table() -> None:
    spec = read(GOOD + 'sources: {device.tile: "guess", max_devices: "old"}\n')
    assert spec.sources == {
        "max_devices": "eight nodes", "device.peak_flops.bf16": "datasheet", "device.tile": "guess"
    }  # fmt: skip
    assert [x.span for x in spec.tiers] == [8, 32, 0]
    assert type(spec.device.half_rows) is float
    assert spec.calibrated_on == small_cluster().calibrated_on


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: mine", "nmae: mine", "c.yaml:1: field nmae: unknown; did you mean name?"),
        ("name: mine\n", "", "c.yaml: field name: missing"),
        ("  tile: 128\n", "", "c.yaml:4: field device.tile: missing"),
        (
            "  tile: 128",
            "  title: 128",
            "c.yaml:16: field device.title: unknown; did you mean tile",
        ),
        (
            "tile: 128",
            "tile: 12.5",
            "c.yaml:16: field device.tile: must be a whole number, not 12.5",
        ),
        ("tile: 128", "tile: true", "field device.tile: must be a whole number, not True"),
        ("tile: 128", "tile: 0", "field device.tile: must be positive, not 0"),
        ("tile: 128", "tile: 1" + "0" * 400, "field device.tile: must be at most 10000000"),
        (
            "memory_bytes: 80e9",
            "memory_bytes: -1",
            "c.yaml:8: field device.memory_bytes: must be pos",
        ),
        ("memory_bytes: 80e9", "memory_bytes: 80 GB", "must be a number, not '80 GB'"),
        ("memory_bytes: 80e9", "memory_bytes: .nan", "must be a finite number, not nan"),
        ("memory_bytes: 80e9", "memory_bytes: .inf", "must be a finite number, not inf"),
        ("memory_bytes: 80e9", "memory_bytes: 1" + "0" * 400, "must be a finite number"),
        (
            "memory_bytes: 80e9",
            "memory_bytes: {value: 1, from: x}",
            "must be a number, not {'value'",
        ),
        ("memory_bytes: 80e9", "memory_bytes: {value: 1, source: 3}", "must be a number, not {"),
        ("memory_bytes: 80e9", "memory_bytes:", "must be a number, not None"),
        ("reserved_bytes: 0", "reserved_bytes: 80e9", "field device.reserved_bytes: must be below"),
        ("reserved_bytes: 0", "reserved_bytes: -1", "must not be negative"),
        (
            "{bf16: 0.7}",
            "{bf16: 70}",
            "c.yaml:11: field device.matmul_efficiency.bf16: must be at most",
        ),
        ("{bf16: 0.7}", "{bf16: 0}", "must be positive, not 0"),
        ("{bf16: 0.7}", "{fp8: 0.7}", "field device.matmul_efficiency.bf16: missing"),
        (
            "{bf16: 0.7}",
            "{bf16: 0.7, fp_8: 1}",
            "matmul_efficiency.fp_8: unknown dtype; did you mean fp8",
        ),
        ("{bf16: 0.7}", "0.7", "c.yaml:11: field device.matmul_efficiency: must be a mapping"),
        ("attention_efficiency: 0.6", "attention_efficiency: 1.01", "must be at most 1"),
        ("kernel_seconds: 4e-6", "overlap_slowdown: 1\n  kernel_seconds: 0", "must be below 1"),
        (
            "span: 8",
            "span: 4",
            "c.yaml:20: field tiers.0.span: must equal devices_per_node 8, not 4",
        ),
        ("span: 32", "span: 20", "c.yaml:21: field tiers.1.span: must be a multiple of the inner"),
        ("span: 32", "span: 8", "field tiers.1.span: must be a multiple"),
        ("span: 32", "span: 0", "field tiers.1.span: must be a multiple"),
        ("    span: 0", "    span: 64", "c.yaml:23: field tiers.2.span: must be 0 (the whole"),
        (
            "    efficiency: 1",
            "    efficiency: 1.5",
            "c.yaml:25: field tiers.2.efficiency: must be at",
        ),
        (
            "    half_bytes: 1e6",
            "    half_bytes: 1\n    one_to_one: 1",
            "must be true or false, not 1",
        ),
        (
            "devices_per_node: 8",
            "devices_per_node: [8]",
            "c.yaml:2: field devices_per_node: must be",
        ),
        ("name: mine", "name: 3", "c.yaml:1: field name: must be text, not 3"),
        ("name: mine", "name: x\nsources: {a: 1}", "c.yaml:2: field sources.a: must be text"),
        ("name: mine", "name: x\nsources: 1", "c.yaml:2: field sources: must be a mapping"),
    ],
)
def test_a_bad_field_is_one_line_with_file_line_and_field(old: str, new: str, words: str) -> None:
    assert GOOD.count(old) >= 1
    with pytest.raises(InputError) as error:
        read(GOOD.replace(old, new, 1))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("tiers", ["tiers: []", "tiers: 3", "tiers: [3]", "tiers: {a: 1}"])
def test_bad_tiers_are_one_line(tiers: str) -> None:
    with pytest.raises(InputError, match=r"^c\.yaml:19: field tiers(\.0)?: must "):
        read(GOOD[: GOOD.index("tiers:")] + tiers)


@settings(max_examples=60)
@given(st.data())
def test_any_one_damaged_field_is_an_input_error_or_a_cluster(data: st.DataObject) -> None:
    mapping = copy.deepcopy(cluster_to_mapping(small_cluster()))
    parts = [mapping, mapping["device"], mapping["tiers"][0], mapping["device"]["peak_flops"]]
    part = data.draw(st.sampled_from(parts))
    key = data.draw(st.sampled_from([*part, "other"]))
    junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    part[key] = data.draw(junk | st.lists(junk, max_size=2) | st.dictionaries(NAMES, junk))
    try:
        assert isinstance(cluster_from_mapping(mapping), ClusterSpec)
    except InputError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("cluster: field ")


def test_a_cluster_inside_another_file_is_named_by_its_place() -> None:
    document = parse_mapping("job: 1\ncluster:\n  name: 3\n", "plan.yaml")
    with pytest.raises(InputError, match=r"^plan\.yaml:3: field cluster\.name: must be text"):
        mapping = cluster_to_mapping(small_cluster()) | document.mapping["cluster"]
        cluster_from_mapping(mapping, file="plan.yaml", lines=document.lines, prefix="cluster")


def test_loads_a_path_or_a_name_in_any_case(tmp_path: Path) -> None:
    for name in ("mine.yaml", "plain"):
        (tmp_path / name).write_text(GOOD)
        assert load_cluster(str(tmp_path / name)).name == "mine"
    assert load_cluster("H100") == load_cluster("h100")


@pytest.mark.parametrize("name", ["h10", "atlas-800", "", "x" * 300, "a\0b", "nothing like it"])
def test_an_unknown_name_is_one_line(name: str) -> None:
    with pytest.raises(InputError) as error:
        load_cluster(name)
    assert "\n" not in str(error.value)
    if name == "h10":
        assert "did you mean h100?" in str(error.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_cluster(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="Is a directory"):
        load_cluster(str(tmp_path))


def test_preset_files_read_alike_in_any_yaml_reader() -> None:
    """YAML 1.1 takes 1e12 for text; presets are written so that it makes no difference."""
    folder = Path(__file__).parent.parent / "unjam/spec/presets/clusters"
    for path in folder.glob("*.yaml"):
        assert cluster_from_mapping(yaml.safe_load(path.read_text())) == load_cluster(path.stem)


# Published runs


def test_published_runs_are_consistent_with_their_clusters() -> None:
    pangu = published_runs("pangu-ultra-moe-718b", "atlas-800t-a2")
    assert [(x.devices, x.tokens_per_second) for x in pangu] == [(4096, 0.61e6), (6144, 1.46e6)]
    assert [x.strategy.schedule for x in pangu if x.strategy] == ["interleaved", "adaptive"]
    (deepseek,) = published_runs("deepseek-v3", "h800")
    step = deepseek.global_batch * deepseek.seq_len / deepseek.tokens_per_second  # type: ignore[operator]
    assert step == pytest.approx(19.926, rel=1e-3)
    for run in [*pangu, deepseek]:
        assert run.source
        assert run.devices <= load_cluster(run.cluster).max_devices
        if run.strategy:
            assert run.strategy.devices == run.devices
            assert run.strategy.schedule in SCHEDULES
            assert run.strategy.dispatcher in DISPATCHERS
            assert run.strategy.recompute in RECOMPUTE


def test_no_published_run_is_an_empty_list() -> None:
    assert published_runs("deepseek-v3", "a100") == []
