"""Report, trace, table and JSON of a hand-made search result."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fakes import fake_search, fake_step
from hypothesis import given
from hypothesis import strategies as st

from unjam.export.preset_tables import cluster_table, parameters_table
from unjam.export.report import render_report, words
from unjam.export.report_charts import blocks_of, memory_curve, ticks
from unjam.export.table import console, print_search, print_step, search_to_json
from unjam.export.trace import place_transfers, render_trace, slot_name, trace_of
from unjam.spec.errors import InputError
from unjam.spec.files import write_text

VOID = {"meta", "input", "br"}


class Balance(HTMLParser):
    """Checks that every element that opens also closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(v) for k, v in attrs if k in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(fake_search())


def test_report_is_one_well_formed_file_that_loads_nothing(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.links == []
    assert not re.search(r"https?://|@import|url\(", page)


def test_report_shows_what_it_found_as_text(page: str) -> None:
    best = fake_search().best[0].prediction
    for text in ("TP8 PP4 VPP2 EP32", f"{best.step_seconds:.2f} s", "no measured run", "610,000"):
        assert text in page
    for text in ("EP does not divide the experts", "pipeline bubble", "does not fit", "100,000"):
        assert text in page


def test_report_escapes_what_users_named(page: str) -> None:
    assert "round &lt;64 GB&gt;" in page
    assert "<64 GB>" not in page


def test_report_of_a_single_strategy_without_published_figures() -> None:
    page = render_report(replace(fake_search(top=1), published=(), notes=()))
    assert "No published figure" in page


def test_words_name_what_the_second_spends_more_on() -> None:
    assert "2.0% slower" in words(fake_search())[1]
    assert "experts and FFN" in words(fake_search())[1]


def test_timeline_boxes_cover_exactly_the_busy_time() -> None:
    timeline = fake_step().timeline
    rows = blocks_of(timeline)
    busy = [sum(b.end - b.start for b in row) for row in rows]
    assert np.allclose(busy, timeline.busy_seconds())


def test_merged_timeline_keeps_span_and_loses_boxes() -> None:
    timeline = fake_step(4, 400).timeline
    rows = blocks_of(timeline, most=100)
    for row, start, end in zip(rows, timeline.start, timeline.end, strict=True):
        assert (row[0].start, row[-1].end) == (start[0], end[-1])
        assert len(row) < len(start)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(row))


def test_memory_curve_reaches_the_peak_of_the_step() -> None:
    step = fake_step()
    for rank, held in enumerate(step.activation_gib):
        static, curve = memory_curve(step, rank)
        assert curve.max() == held.max()
        assert static == pytest.approx(sum(x[rank] for x in step.static_gib.values()))


@given(st.floats(1e-6, 1e6), st.integers(2, 15))
def test_ticks_are_round_and_inside(limit: float, about: int) -> None:
    marks = ticks(limit, about)
    assert marks[0] == 0
    assert marks[-1] <= limit * (1 + 1e-6)
    assert about / 3 <= len(marks) <= about + 2


def test_slot_names() -> None:
    assert slot_name((0, 0, 3, -1, -1)) == "F c0 m3"
    assert slot_name((1, 1, 2, -1, -1)) == "B c1 m2"
    assert slot_name((4, 0, 9, 1, 2)) == "F c0 m9 | B c1 m2"


def test_trace_has_a_process_per_rank_and_every_slot(tmp_path: Path) -> None:
    step = fake_step()
    write_text(tmp_path / "trace.json", render_trace(step))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {x["args"]["name"] for x in events if x["name"] == "process_name"}
    assert names == {f"pipeline rank {r}" for r in range(4)}
    passes = [x for x in events if x["ph"] == "X" and x["tid"] == 0]
    slots = sum(len(x) for x in step.timeline.schedule.orders)
    assert len(passes) == slots + 4 * len(step.tail_seconds)
    ends = max(x["ts"] + x["dur"] for x in events if x["ph"] == "X")
    assert ends == pytest.approx(1e6 * (step.timeline.seconds + sum(step.tail_seconds.values())))


def test_trace_events_of_one_thread_never_overlap() -> None:
    events = [x for x in trace_of(fake_step())["traceEvents"] if x["ph"] == "X"]
    threads = {(x["pid"], x["tid"]) for x in events}
    assert len(threads) == 8
    for thread in threads:
        mine = sorted((x["ts"], x["dur"]) for x in events if (x["pid"], x["tid"]) == thread)
        for (start, length), (following, _) in pairwise(mine):
            assert start + length <= following + 0.01


@given(st.lists(st.floats(1e-6, 5.0), min_size=1, max_size=5), st.floats(1e-3, 10.0))
def test_transfers_stay_inside_their_slot(seconds: list[float], slot: float) -> None:
    names = ["combine B", "dispatch F", "dispatch B", "x", "combine F"][: len(seconds)]
    placed = place_transfers(list(zip(names, seconds, strict=True)), slot)
    ends = [begin + length for _, begin, length in placed]
    assert all(b >= a - 1e-9 for a, (_, b, _) in zip([0.0, *ends], placed, strict=False))
    assert ends[-1] <= slot * (1 + 1e-9)
    assert sum(x for *_, x in placed) == pytest.approx(min(sum(seconds), slot))


def test_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        write_text(tmp_path / "file" / "trace.json", render_trace(fake_step()))
    assert "\n" not in str(caught.value)


def test_json_has_the_promised_keys() -> None:
    value = json.loads(json.dumps(search_to_json(fake_search()), allow_nan=False))
    degrees = {"tp", "pp", "vpp", "ep", "etp", "cp", "dp", "mbs"}
    named = {"recompute", "dispatcher", "schedule", "layout", "zero"}
    figures = {
        "step_seconds", "tokens_per_second_per_device", "mfu", "peak_memory_gib",
        "exposed_comm_fraction", "hidden_ep_fraction", "bubble_fraction",
    }  # fmt: skip
    assert set(value["strategies"][0]) == degrees | named | figures
    assert value["counts"] == {
        "raw": 120_000, "invalid": 100_000, "pruned": 19_000, "simulated": 1_000,
    }  # fmt: skip
    assert value["published"][1]["predicted_tokens_per_second"] is None


def test_tables_print_every_promised_column(capsys: pytest.CaptureFixture[str]) -> None:
    result = fake_search()
    print_search(console(), result)
    print_step(console(), result.best[0], "one step")
    printed = capsys.readouterr().out
    for text in ("tokens/s/device", "exposed comm", "bubble", "MFU: model FLOPs", "1.05", "dedup"):
        assert text in printed
    assert "activations 21.00" in printed


def test_parameter_and_cluster_tables(capsys: pytest.CaptureFixture[str]) -> None:
    result = fake_search()
    cluster = replace(result.cluster, sources={"device": "data sheet"})
    console().print(parameters_table(result.model))
    mapping = {"device": {"memory_bytes": 64.0}, "tiers": [{"span": 8}]}
    console().print(cluster_table(cluster, mapping))
    printed = capsys.readouterr().out
    assert f"{result.model.params.total_params:,}" in printed
    assert re.search(r"device\.memory_bytes.*64.*data sheet", printed)
    assert "tiers.0.span" in printed
