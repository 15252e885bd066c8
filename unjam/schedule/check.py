"""The checker: a schedule is proven runnable before it is simulated or executed."""

from __future__ import annotations

from collections.abc import Iterator

from unjam.schedule.ir import Kind, Schedule
from unjam.spec.errors import InputError

Pass = tuple[str, int, int]  # what (F, I, W), chunk, micro-batch


def passes(slot: tuple[int, ...]) -> list[Pass]:
    """The passes of one slot ``(kind, chunk, micro-batch, chunk, micro-batch)``."""
    kind, chunk, micro_batch, back_chunk, back_micro_batch = slot
    if kind == Kind.F:
        return [("F", chunk, micro_batch)]
    if kind == Kind.B:
        return [("I", chunk, micro_batch), ("W", chunk, micro_batch)]
    if kind == Kind.FB:
        back = (back_chunk, back_micro_batch)
        return [("F", chunk, micro_batch), ("I", *back), ("W", *back)]
    return [("I" if kind == Kind.I else "W", chunk, micro_batch)]


def check(schedule: Schedule) -> None:
    """Raise unless every pass runs once per rank, in an order that cannot deadlock.

    Raises:
        InputError: one line that names rank, slot and pass.
    """
    for rank in range(schedule.ranks):
        _check_rank(schedule, rank)
    _check_progress(schedule)


def _slots(schedule: Schedule, rank: int) -> Iterator[tuple[int, ...]]:
    return (tuple(x) for x in schedule.orders[rank].tolist())


def _check_rank(schedule: Schedule, rank: int) -> None:
    seen: set[Pass] = set()
    for index, slot in enumerate(_slots(schedule, rank)):
        where = f"schedule {schedule.name}: rank {rank}, slot {index}"
        if slot[0] == Kind.FB and ("F", *slot[3:5]) not in seen:
            # Both halves start together, so a pair cannot hold a backward and its own forward.
            back = f"chunk {slot[3]}, micro-batch {slot[4]}"
            raise InputError(f"{where}: deadlock: I of {back} runs before its F")
        for item in passes(slot):
            what, chunk, micro_batch = item
            label = f"{what} of chunk {chunk}, micro-batch {micro_batch}"
            if not (0 <= chunk < schedule.chunks and 0 <= micro_batch < schedule.micro_batches):
                raise InputError(f"{where}: {label} does not exist")
            if item in seen:
                raise InputError(f"{where}: {label} runs twice")
            needs = {"F": None, "I": ("F", chunk, micro_batch), "W": ("I", chunk, micro_batch)}
            before = needs[what]
            if before is not None and before not in seen:
                raise InputError(f"{where}: {label} runs before its {before[0]}")
            seen.add(item)
    expected = 3 * schedule.chunks * schedule.micro_batches
    if len(seen) != expected:
        missing = expected - len(seen)
        raise InputError(f"schedule {schedule.name}: rank {rank} leaves out {missing} passes")


def _check_progress(schedule: Schedule) -> None:
    """Run the orders without time; a round in which no rank advances is a deadlock."""
    orders = [list(_slots(schedule, r)) for r in range(schedule.ranks)]
    position = [0] * schedule.ranks
    done: set[tuple[str, int, int]] = set()  # F or I, stage, micro-batch
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while position[rank] < len(order) and _ready(
                schedule, rank, order[position[rank]], done
            ):
                for what, chunk, micro_batch in passes(order[position[rank]]):
                    done.add((what, schedule.stage(rank, chunk), micro_batch))
                position[rank] += 1
                moved = True
    stuck = [r for r in range(schedule.ranks) if position[r] < len(orders[r])]
    if stuck:
        rank = stuck[0]
        slot = orders[rank][position[rank]]
        raise InputError(
            f"schedule {schedule.name}: deadlock: rank {rank} waits at slot {position[rank]} "
            f"({Kind(slot[0]).name} of chunk {slot[1]}, micro-batch {slot[2]})"
        )


def _ready(
    schedule: Schedule, rank: int, slot: tuple[int, ...], done: set[tuple[str, int, int]]
) -> bool:
    last = schedule.ranks * schedule.chunks - 1
    for what, chunk, micro_batch in passes(slot):
        stage = schedule.stage(rank, chunk)
        if what == "F" and stage > 0 and ("F", stage - 1, micro_batch) not in done:
            return False
        if what == "I" and stage < last and ("I", stage + 1, micro_batch) not in done:
            return False
    return True
