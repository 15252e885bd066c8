"""Schedules as the CSV of torch.distributed.pipelining, in its ``compute_only`` format.

A row is a rank, a cell a slot: ``4F1`` is the forward of micro-batch 1 on stage 4 of the model,
``B``, ``I`` and ``W`` likewise; a pair is ``(0F1;2B0)OVERLAP_F_B``; an empty cell is a bubble.
Stages count over all ranks; torch runs a stage on one rank only.

What the runtime of torch 2.13 makes of it: unless a function is registered for OVERLAP_F_B, the
parts of a pair run one after the other as they are written, so F before B, and both results are
sent once the pair is done. A ``B`` is sent after its W, not between I and W.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from unjam.schedule.check import check
from unjam.schedule.ir import IntArray, Kind, Placement, Schedule
from unjam.spec.documents import file_error
from unjam.spec.errors import InputError

# Nine digits fit the arrays of a schedule.
_PASS = r"([0-9]{1,9})([FBIW])([0-9]{1,9})"
_LONE = re.compile(_PASS)
_PAIR = re.compile(rf"\(\s*{_PASS}\s*;\s*{_PASS}\s*\)\s*OVERLAP_F_B")
# Follows from the passes, and from the model where parameters are sharded.
_DERIVED = re.compile(r"[0-9]+(?:SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*")


class _Cell(NamedTuple):
    """A slot with stages in place of chunks; the last three as in `Schedule.orders`."""

    where: str
    kind: Kind
    stage: int
    micro_batch: int
    back_stage: int = -1
    back_micro_batch: int = -1

    def stages(self) -> tuple[int, ...]:
        return (self.stage, self.back_stage) if self.kind == Kind.FB else (self.stage,)


def to_torch_csv(schedule: Schedule) -> str:
    """One row per rank, which torch's runtime loads as ``compute_only``.

    Raises:
        InputError: torch cannot run it: every weight is held twice, or the last stage takes
            micro-batches out of order (torch would take the loss of another one).
    """
    if schedule.placement == Placement.BIDIRECTIONAL:
        raise InputError(
            f"schedule {schedule.name}: holds every weight twice, and torch runs a stage on one "
            "rank only; use a schedule that places stages in a loop or a V"
        )
    lines = []
    for rank, order in enumerate(schedule.orders):
        cells = [_format(schedule, rank, slot) for slot in order.tolist()]
        _check_losses(schedule, rank)
        lines.append(",".join(cells) + "\n")
    return "".join(lines)


def _format(schedule: Schedule, rank: int, slot: list[int]) -> str:
    kind, chunk, micro_batch, back_chunk, back_micro_batch = slot
    stage = schedule.stage(rank, chunk)
    if kind != Kind.FB:
        return f"{stage}{Kind(kind).name}{micro_batch}"
    back_stage = schedule.stage(rank, back_chunk)
    return f"({stage}F{micro_batch};{back_stage}B{back_micro_batch})OVERLAP_F_B"


def _check_losses(schedule: Schedule, rank: int) -> None:
    """Raise if the last stage is here and its forwards are not in order of micro-batch."""
    last = schedule.ranks * schedule.chunks - 1
    if schedule.stage(rank, schedule.chunks - 1) != last:
        return
    kind, chunk, micro_batch = schedule.orders[rank][:, :3].T
    forward = ((kind == Kind.F) | (kind == Kind.FB)) & (chunk == schedule.chunks - 1)
    order = micro_batch[forward]
    early = np.flatnonzero(np.diff(order) < 0)
    if len(early):
        before, after = order[early[0] : early[0] + 2]
        raise InputError(
            f"schedule {schedule.name}: rank {rank}: stage {last} runs forward {before} before "
            f"{after}, but torch counts losses in order; run its forwards in order"
        )


def from_torch_csv(text: str, name: str = "torch", source: str = "schedule.csv") -> Schedule:
    """The schedule of a CSV in torch's ``compute_only`` or ``compute_comms`` format.

    Communication is skipped, since it follows from the passes; bubbles are skipped too. The halves
    of a pair start together here, whichever is written first.

    Args:
        text: content of the file.
        name: name of the schedule.
        source: name of the file, for messages.

    Raises:
        InputError: a cell is not understood, stages lie neither in a loop nor in a V, or the
            schedule cannot run.
    """
    rows = [
        list(_cells(row, f"{source}: row {number}"))
        for number, row in enumerate(_rows(text, source), start=1)
    ]
    placement = _placement(rows)
    everything = [cell for row in rows for cell in row]
    ranks = len(rows)
    schedule = Schedule(
        name,
        ranks,
        max(stage for cell in everything for stage in cell.stages()) // ranks + 1,
        max(max(cell.micro_batch, cell.back_micro_batch) for cell in everything) + 1,
        tuple(_order(row, ranks) for row in rows),
        placement,
    )
    try:
        check(schedule)
    except InputError as error:
        note = "rank 0 is row 1; slots count the passes of a row from 0"
        raise file_error(source, f"{error} ({note})") from None
    return schedule


def _rows(text: str, source: str) -> list[list[str]]:
    """Cells without the blanks around them; blank rows at the end do not count."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        rows = [[cell.strip() for cell in row] for row in reader]
    except csv.Error as error:
        message = f"not a CSV file ({error}): give one row per rank, cells parted by commas"
        raise file_error(f"{source}: line {reader.line_num}", message) from None
    while rows and not any(rows[-1]):
        rows.pop()
    if not rows:
        raise file_error(source, "holds no passes: give one row per rank with cells like 0F0")
    return rows


def _cells(row: list[str], where: str) -> Iterator[_Cell]:
    found = False
    for number, text in enumerate(row, start=1):
        if text and not _DERIVED.fullmatch(text):
            found = True
            yield _parse(text, f"{where}, cell {number}")
    if not found:
        raise file_error(where, "holds no passes: every row is a rank that runs a stage")


def _parse(text: str, where: str) -> _Cell:
    if lone := _LONE.fullmatch(text):
        stage, what, micro_batch = lone.groups()
        return _Cell(where, Kind[what], int(stage), int(micro_batch))
    shown = repr(text if len(text) <= 60 else text[:57] + "...")
    pair = _PAIR.fullmatch(text)
    if pair is None:
        raise file_error(where, f"{shown} is no action: write one like 0F0 or (0F1;2B0)OVERLAP_F_B")
    halves = {pair[2]: (int(pair[1]), int(pair[3])), pair[5]: (int(pair[4]), int(pair[6]))}
    if halves.keys() != {"F", "B"}:
        raise file_error(where, f"{shown} is no pair of one F and one B: write two cells")
    return _Cell(where, Kind.FB, *halves["F"], *halves["B"])


def _placement(rows: list[list[_Cell]]) -> Placement:
    """The placement that puts every stage on the rank that runs it; a loop if both do."""
    ranks = len(rows)
    possible = [Schedule("", ranks, 1, 1, (), x) for x in (Placement.LOOP, Placement.V)]
    for rank, row in enumerate(rows):
        for cell in row:
            for stage in cell.stages():
                possible = [x for x in possible if x.stage(rank, stage // ranks) == stage]
                if not possible:
                    raise file_error(
                        cell.where,
                        f"stage {stage} on rank {rank} of {ranks}: stages lie neither in a loop "
                        f"(stage s on rank s % {ranks}) nor in a V: give each rank its own stages",
                    )
    return possible[0].placement


def _order(row: Iterable[_Cell], ranks: int) -> IntArray:
    """The int32 array ``[slots, 5]`` of a rank; in a loop and in a V, chunk is stage // P."""
    return np.array(
        [
            (c.kind, c.stage // ranks, c.micro_batch, c.back_stage // ranks, c.back_micro_batch)
            for c in row
        ],
        dtype=np.int32,
    )
