"""The checker: a schedule is proven runnable before it is simulated or executed.

Between two slots a rank sends what the first made on another rank's behalf and receives what the
second needs. *Posted*: sends do not block; a slot starts once its inputs are there. *Blocking*: the
sends and receives between two slots are one batch, and the rank goes on when all of them are done,
each of which takes both sides (``batch_isend_irecv`` and wait, without buffers).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from unjam.schedule.in_flight import peak_in_flight
from unjam.schedule.ir import Kind, Schedule
from unjam.spec.errors import InputError

FloatArray = npt.NDArray[np.float64]
Pass = tuple[str, int, int]  # what (F, I, W), chunk, micro-batch
Message = tuple[str, int, int]  # what (F, I), place that receives, micro-batch


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


def check(schedule: Schedule, *, blocking: bool = False) -> None:
    """Raise unless every pass runs once, after what it needs, and the orders cannot deadlock.

    Args:
        schedule: the orders.
        blocking: whether sends and receives block; see above.

    Raises:
        InputError: one line that names rank, slot and pass.
    """
    if len(schedule.orders) != schedule.ranks:
        orders = len(schedule.orders)
        raise InputError(f"schedule {schedule.name}: {orders} orders for {schedule.ranks} ranks")
    for rank in range(schedule.ranks):
        _check_rank(schedule, rank)
    _check_progress(schedule)
    if blocking:
        _check_blocking(schedule)


def check_memory(schedule: Schedule, size: FloatArray, capacity: FloatArray) -> None:
    """Raise unless every rank can hold what it has in flight.

    Args:
        schedule: the orders.
        size: what one micro-batch leaves at each place, ``[P*V]``; any unit.
        capacity: what each rank may hold, ``[P]``, in the same unit.

    Raises:
        InputError: names the rank, what it holds and what fits.
    """
    peak = peak_in_flight(schedule, size)
    over = np.flatnonzero(peak > capacity * (1 + 1e-9))
    if len(over):
        r = int(over[0])
        raise InputError(
            f"schedule {schedule.name}: rank {r} holds {peak[r]:g} of activations, "
            f"{capacity[r]:g} fit"
        )


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
            if not (
                0 <= chunk < schedule.chunks and micro_batch in schedule.micro_batches_of(chunk)
            ):
                raise InputError(f"{where}: {label} does not exist")
            if item in seen:
                raise InputError(f"{where}: {label} runs twice")
            needs = {"F": None, "I": ("F", chunk, micro_batch), "W": ("I", chunk, micro_batch)}
            before = needs[what]
            if before is not None and before not in seen:
                raise InputError(f"{where}: {label} runs before its {before[0]}")
            seen.add(item)
    expected = 3 * sum(len(schedule.micro_batches_of(v)) for v in range(schedule.chunks))
    if len(seen) != expected:
        missing = expected - len(seen)
        raise InputError(f"schedule {schedule.name}: rank {rank} leaves out {missing} passes")


def _messages(schedule: Schedule) -> list[list[tuple[list[Message], list[Message]]]]:
    """What each slot of each rank receives and sends; within a rank nothing is sent.

    A message is named by the place that receives it.
    """
    before, after = (x.tolist() for x in schedule.neighbours())
    out = []
    for rank in range(schedule.ranks):
        row = []
        for slot in _slots(schedule, rank):
            received: list[Message] = []
            sent: list[Message] = []
            for what, chunk, micro_batch in passes(slot):
                if what == "W":
                    continue
                place = chunk * schedule.ranks + rank
                back, on = before[place], after[place]
                source, target = (back, on) if what == "F" else (on, back)
                if source >= 0:
                    received.append((what, place, micro_batch))
                if target >= 0:
                    sent.append((what, target, micro_batch))
            row.append((received, sent))
        out.append(row)
    return out


def _check_progress(schedule: Schedule) -> None:
    """Run the orders without time; a round in which no rank advances is a deadlock."""
    messages = _messages(schedule)
    position = [0] * schedule.ranks
    arrived: set[Message] = set()
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(messages):
            while position[rank] < len(row) and arrived.issuperset(row[position[rank]][0]):
                arrived.update(row[position[rank]][1])
                position[rank] += 1
                moved = True
    _complain(schedule, position, "deadlock")


def _check_blocking(schedule: Schedule) -> None:
    """The same with batches that wait for both sides; batch i of a rank comes before its slot i."""
    ranks = schedule.ranks
    posts: list[list[set[tuple[Message, int]]]] = []  # of each batch: message, its receiving rank
    for rank, row in enumerate(_messages(schedule)):
        batches: list[set[tuple[Message, int]]] = [set() for _ in range(len(row) + 1)]
        for i, (received, sent) in enumerate(row):
            batches[i] |= {(x, rank) for x in received if not _is_local(schedule, x, rank)}
            batches[i + 1] |= {(x, x[1] % ranks) for x in sent if x[1] % ranks != rank}
        posts.append(batches)
    position = [0] * ranks
    sides: dict[tuple[Message, int], int] = {}
    for batches in posts:
        _post(sides, batches[0])
    moved = True
    while moved:
        moved = False
        for rank, batches in enumerate(posts):
            while position[rank] < len(batches) and all(
                sides[x] == 2 for x in batches[position[rank]]
            ):
                position[rank] += 1
                moved = True
                if position[rank] < len(batches):
                    _post(sides, batches[position[rank]])
    _complain(schedule, position, "deadlock of blocking sends")


def _is_local(schedule: Schedule, message: Message, rank: int) -> bool:
    """Whether what a place receives is made on its own rank."""
    before, after = schedule.neighbours()
    source = before[message[1]] if message[0] == "F" else after[message[1]]
    return bool(source % schedule.ranks == rank)


def _post(sides: dict[tuple[Message, int], int], batch: set[tuple[Message, int]]) -> None:
    for message in batch:
        sides[message] = sides.get(message, 0) + 1


def _complain(schedule: Schedule, position: list[int], what: str) -> None:
    for rank, order in enumerate(schedule.orders):
        if position[rank] < len(order):
            kind, chunk, micro_batch, *_ = order[position[rank]].tolist()
            raise InputError(
                f"schedule {schedule.name}: {what}: rank {rank} waits at slot {position[rank]} "
                f"({Kind(kind).name} of chunk {chunk}, micro-batch {micro_batch})"
            )
