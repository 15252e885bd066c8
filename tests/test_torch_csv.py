"""The CSV of torch.distributed.pipelining, read and written, against torch's own reader."""

from __future__ import annotations

import csv
import io
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unjam.schedule import registry
from unjam.schedule.check import passes
from unjam.schedule.ir import Kind, Placement, Schedule
from unjam.schedule.registry import build_schedule
from unjam.schedule.torch_csv import from_torch_csv, to_torch_csv
from unjam.spec.errors import InputError
from unjam.spec.strategy import SCHEDULES

NAMES = tuple(getattr(registry, "SCHEDULE_NAMES", SCHEDULES))
BUILT_IN = [
    # torch's schedule, P, V, M, placement
    ("ScheduleLoopedBFS", 4, 1, 6, Placement.LOOP),
    ("ScheduleLoopedBFS", 4, 2, 8, Placement.LOOP),
    ("ScheduleInterleaved1F1B", 4, 2, 8, Placement.LOOP),
    ("ScheduleInterleaved1F1B", 4, 3, 12, Placement.LOOP),
    ("ScheduleInterleavedZeroBubble", 4, 2, 8, Placement.LOOP),
    ("ScheduleZBVZeroBubble", 4, 2, 8, Placement.V),
    ("ScheduleZBVZeroBubble", 3, 2, 4, Placement.V),
    ("ScheduleDualPipeV", 4, 2, 8, Placement.V),
    ("ScheduleDualPipeV", 2, 2, 7, Placement.V),
]


@dataclass
class FakeStage:
    """What torch's schedules ask of a stage before they run it."""

    num_stages: int
    group_size: int
    stage_index: int = 0
    group_rank: int = 0
    submod: Any = None
    is_last: bool = False
    has_backward: bool = True
    stage_index_to_group_rank: Any = None


def torch_schedule(kind: str, ranks: int, chunks: int, micro_batches: int) -> Any:
    """A schedule of torch on stages that cannot run; its loss is never called."""
    from torch.distributed.pipelining import schedules

    stages = [FakeStage(ranks * chunks, ranks, v * ranks) for v in range(chunks)]
    single = issubclass(getattr(schedules, kind), schedules.PipelineScheduleSingle)
    return getattr(schedules, kind)(
        stages[0] if single else stages, micro_batches, loss_fn=lambda output, target: output
    )


def build(name: str, ranks: int, chunks: int, micro_batches: int) -> Schedule | None:
    """The schedule, or nothing where its sizes or its placement rule it out."""
    try:
        schedule = build_schedule(name, ranks, chunks, micro_batches)  # type: ignore[arg-type]
    except InputError:
        return None
    return None if schedule.placement == Placement.BIDIRECTIONAL else schedule


def cells(order: list[Any]) -> list[str]:
    """Actions of torch as it prints them, bubbles left out."""
    return [str(x) for x in order if x is not None]


@given(name=st.sampled_from(NAMES), p=st.integers(1, 6), v=st.integers(1, 4), m=st.integers(1, 20))
def test_what_is_written_is_read_back(name: str, p: int, v: int, m: int) -> None:
    schedule = build(name, p, v, m)
    if schedule is None:
        return
    again = from_torch_csv(to_torch_csv(schedule), name)
    assert (again.name, again.ranks, again.chunks) == (schedule.name, p, v)
    assert again.micro_batches == m
    assert again.stage_of_place().tolist() == schedule.stage_of_place().tolist()
    assert all(map(np.array_equal, again.orders, schedule.orders))


@given(data=st.data())
def test_bubbles_blanks_and_quotes_change_nothing(data: st.DataObject) -> None:
    schedule = build_schedule("adaptive", 3, 2, 5)
    rows = []
    for row in csv.reader(io.StringIO(to_torch_csv(schedule))):
        out = []
        for cell in row:
            out += [""] * data.draw(st.integers(0, 2))
            form = data.draw(st.sampled_from(["{}", " {}", "{}\t", '"{}"', ' " {} "']))
            out.append(form.format(cell.replace(";", data.draw(st.sampled_from([";", " ; "])))))
        rows.append(",".join(out))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    again = from_torch_csv(end.join([*rows, "", ",,"]))
    assert all(map(np.array_equal, again.orders, schedule.orders))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("v", [1, 2])
def test_torch_reads_what_is_written(name: str, v: int, tmp_path: Path) -> None:
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    schedule = build(name, 4, v, 8)
    if schedule is None:
        pytest.skip("no such schedule of this size with one copy of the weights")
    file = tmp_path / "schedule.csv"
    file.write_text(to_torch_csv(schedule))
    stages: Any = [FakeStage(4 * v, 4, i * 4) for i in range(v)]
    runtime = _PipelineScheduleRuntime(stages, 8, loss_fn=lambda output, target: output)
    runtime._load_csv(str(file))  # also derives the communication, and fails on a deadlock
    assert runtime.pipeline_order.keys() == set(range(4))
    text = "".join(",".join(map(str, x)) + "\n" for x in runtime.pipeline_order.values())
    assert text == to_torch_csv(schedule)
    place = {schedule.stage(r, c): r for r in range(4) for c in range(v)}
    assert runtime.stage_index_to_group_rank == place


@pytest.mark.parametrize(("kind", "p", "v", "m", "placement"), BUILT_IN)
@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
def test_what_torch_writes_is_read(
    kind: str, p: int, v: int, m: int, placement: Placement, form: Any, tmp_path: Path
) -> None:
    theirs = torch_schedule(kind, p, v, m)
    file = tmp_path / "schedule.csv"
    theirs._dump_csv(str(file), format=form)
    schedule = from_torch_csv(file.read_text(), kind, str(file))
    assert (schedule.ranks, schedule.chunks, schedule.micro_batches) == (p, v, m)
    assert schedule.placement == placement
    ours = [line.split(",") for line in to_torch_csv(schedule).splitlines()]
    assert ours == [cells(theirs.pipeline_order[r]) for r in range(p)]


def test_dualpipe_v_of_torch_keeps_its_pairs() -> None:
    theirs = torch_schedule("ScheduleDualPipeV", 4, 2, 10)
    text = "".join(",".join(cells(theirs.pipeline_order[r])) + "\n" for r in range(4))
    schedule = from_torch_csv(text)
    pairs = [int((x[:, 0] == Kind.FB).sum()) for x in schedule.orders]
    assert sum(pairs) == text.count("OVERLAP_F_B") > 0


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (4, 11)])
def test_1f1b_equals_that_of_torch(p: int, m: int) -> None:
    theirs = torch_schedule("Schedule1F1B", p, 1, m)._get_pipeline_order()
    ours = to_torch_csv(build_schedule("1f1b", p, 1, m)).splitlines()
    for rank in range(p - 1):  # torch 2.13 prints micro-batches 1 to M on the last rank
        assert [*ours[rank].split(","), f"{rank}REDUCE_GRAD"] == cells(theirs[rank])


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 12)])
def test_interleaved_equals_that_of_torch(p: int, v: int, m: int) -> None:
    theirs = torch_schedule("ScheduleInterleaved1F1B", p, v, m).pipeline_order
    ours = to_torch_csv(build_schedule("interleaved", p, v, m)).splitlines()
    assert [x.split(",") for x in ours] == [cells(theirs[r]) for r in range(p)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpipe", "ScheduleLoopedBFS"),
        ("interleaved-zb", "ScheduleInterleavedZeroBubble"),
        ("zbv", "ScheduleZBVZeroBubble"),
        ("dualpipe-v", "ScheduleDualPipeV"),
    ],
)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (3, 6), (8, 16)])
def test_order_equals_that_of_torch(name: str, kind: str, p: int, m: int) -> None:
    theirs = torch_schedule(kind, p, 2, m).pipeline_order
    ours = to_torch_csv(build_schedule(name, p, 2, m)).splitlines()
    assert [x.split(",") for x in ours] == [cells(theirs[r]) for r in range(p)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.csv: holds no passes: give one row per rank"),
        ("\n,,\n", "f.csv: holds no passes"),
        ("0F0,0B0\n\n1F0,1B0\n", "f.csv: row 2: holds no passes"),
        ("0F0,0SEND_F0\n1UNSHARD\n", "f.csv: row 2: holds no passes"),
        ("0F0,oops\n", "f.csv: row 1, cell 2: 'oops' is no action: write one like 0F0"),
        ("0F0,,0B0x\n", "f.csv: row 1, cell 3: '0B0x' is no action"),
        ("0F0,0B\n", "f.csv: row 1, cell 2: '0B' is no action"),
        ("0F0,-1B0\n", "f.csv: row 1, cell 2: '-1B0' is no action"),
        ("0F0,٣B0\n", "f.csv: row 1, cell 2: '٣B0' is no action"),
        ("0F0;0B0\n", "f.csv: row 1, cell 1: '0F0;0B0' is no action"),
        ("0F9999999999\n", "f.csv: row 1, cell 1: '0F9999999999' is no action"),
        ('0F0,"0\nB0"\n', r"f.csv: row 1, cell 2: '0\nB0' is no action"),
        ("9" * 500 + "\n", "f.csv: row 1, cell 1: '" + "9" * 57 + "...' is no action"),
        ('0F0,"0B0\n', "f.csv: line 1: not a CSV file"),
        ("(0F1)OVERLAP_F_B\n", "f.csv: row 1, cell 1: '(0F1)OVERLAP_F_B' is no action"),
        ("(0F1;0F0)OVERLAP_F_B\n", "is no pair of one F and one B: write two cells"),
        ("(0F1;0I0)OVERLAP_F_B\n", "is no pair of one F and one B: write two cells"),
        ("0F0,0B0\n0F0,0B0\n", "f.csv: row 2, cell 1: stage 0 on rank 1 of 2"),
        ("1F0,1B0\n0F0,0B0\n", "f.csv: row 1, cell 1: stage 1 on rank 0 of 2"),
        ("0F0,2F0,2B0,0B0\n1F0,,2F0\n", "f.csv: row 2, cell 3: stage 2 on rank 1 of 2"),
        ("0F0,2F0\n1F0,(3F0;2B0)OVERLAP_F_B\n", "f.csv: row 2, cell 2: stage 2 on rank 1"),
        ("0F0,0B0,0B0\n", "f.csv: schedule torch: rank 0, slot 2: I of chunk 0"),
        ("0F0,0F1,0B0\n", "rank 0 leaves out 2 passes (rank 0 is row 1; slots count"),
        ("0B0,0F0\n", "runs before its F"),
        ("0F0,0W0,0I0\n", "runs before its I"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "deadlock"),
        ("0F999999999,0B999999999\n", "leaves out"),
        ("999999999F0,0B0\n", "f.csv: schedule torch: rank 0, slot 1"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        from_torch_csv(text, source="f.csv")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(alphabet='0123FBIW();,"\n \rOVERLAP_SENDx', max_size=60))
def test_any_text_is_a_schedule_or_one_clear_line(text: str) -> None:
    try:
        schedule = from_torch_csv(text)
    except InputError as error:
        assert str(error).startswith("schedule.csv: ")
        assert len(str(error).splitlines()) == 1
        return
    with suppress(InputError):  # the last stage may take micro-batches out of order
        again = from_torch_csv(to_torch_csv(schedule))
        assert all(map(np.array_equal, again.orders, schedule.orders))


def test_a_pair_written_with_its_backward_first_is_the_same_pair() -> None:
    text = to_torch_csv(build_schedule("adaptive", 2, 1, 4))
    turned = text.replace("(0F3;0B0)", "(0B0;0F3)")
    assert turned != text
    assert to_torch_csv(from_torch_csv(turned)) == text


def test_two_copies_of_the_weights_cannot_be_written() -> None:
    schedule = replace(build_schedule("adaptive", 2, 2, 4), placement=Placement.BIDIRECTIONAL)
    with pytest.raises(InputError, match="schedule adaptive: holds every weight twice"):
        to_torch_csv(schedule)


def test_forwards_out_of_order_on_the_last_stage_cannot_be_written() -> None:
    schedule = build_schedule("1f1b", 1, 1, 3)
    order = schedule.orders[0].copy()
    order[:, 2] = 2 - order[:, 2]
    with pytest.raises(InputError, match="stage 0 runs forward 2 before 1, but torch"):
        to_torch_csv(replace(schedule, orders=(order,)))


@pytest.mark.parametrize("name", NAMES)
def test_every_pass_is_written_once(name: str) -> None:
    for v in (1, 2):
        schedule = build(name, 4, v, 8)
        if schedule is None:
            continue
        for order, line in zip(schedule.orders, to_torch_csv(schedule).splitlines(), strict=True):
            slots = [tuple(x) for x in order.tolist()]
            assert sum(len(passes(x)) for x in slots) == 3 * v * 8
            assert len(set(line.split(","))) == len(slots)
