"""Adaptive Pipe, adapted: the pass order, slices and weight placement with the shortest step.

Coordinate descent over a few discrete choices; each candidate is list-scheduled and timed
(`unjam.schedule.list_scheduler`), so a choice is made by what it does to the whole step. Nothing
depends on a clock or on the order of sums: ranks that solve the same inputs get the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unjam.schedule.adaptive_problem import (
    BoolArray,
    Fit,
    Problem,
    check_problem,
    fitting_orders,
    recomputing,
)
from unjam.schedule.list_scheduler import Preference, list_schedule
from unjam.schedule.operations import operations_of
from unjam.schedule.overlap import FloatArray, Slicing
from unjam.schedule.program import Program
from unjam.spec.errors import InputError

# Operations that one solution may list-schedule in all; about 0.3 us each.
BUDGET = 1_500_000


@dataclass(frozen=True, slots=True)
class Choice:
    """One candidate.

    Attributes:
        order: name of the schedule whose pass order is kept.
        dispatcher: key of the problem's tables.
        slicing: how passes are cut.
        preference: what a free stream prefers.
    """

    order: str
    dispatcher: str
    slicing: Slicing
    preference: Preference = Preference.SLOT


@dataclass(frozen=True, eq=False)
class Solution:
    """The best program found.

    Attributes:
        program: orders of all streams.
        choice: how they came about.
        recomputed: places that recompute, ``[P*V]``.
        capacity: what each rank was allowed to hold, ``[P]``.
        tried: candidates simulated.
    """

    program: Program
    choice: Choice
    recomputed: BoolArray
    capacity: FloatArray
    tried: int

    @property
    def seconds(self) -> float:
        """Seconds from the first to the last operation."""
        return self.program.seconds


def solve(problem: Problem) -> Solution:
    """The program with the shortest step found.

    Raises:
        InputError: a size below 1, a table of the wrong shape, or a capacity that no pass order
            fits, even with recomputation; names the rank, what it needs and what it has.
    """
    check_problem(problem)
    fits = fitting_orders(problem)
    choice, tried = _best(problem, fits)
    program, fit = tried[choice], fits[choice.order]
    if program is None:  # each order fits, so its passes cannot get stuck
        raise InputError("adaptive schedule: no program found; give more memory")
    return Solution(program, choice, fit.recomputed, fit.capacity, len(tried))


def _best(problem: Problem, fits: Mapping[str, Fit]) -> tuple[Choice, dict[Choice, Program | None]]:
    """Coordinate descent from two starts: sliced passes, and whole ones."""
    tried: dict[Choice, Program | None] = {}
    spent = 0

    def seconds(choice: Choice) -> float:
        nonlocal spent
        if choice not in tried:
            if spent > BUDGET and len(tried) > 1:
                return np.inf
            fit = fits[choice.order]
            table = recomputing(problem.tables[choice.dispatcher], problem, fit.recomputed)
            operations = operations_of(fit.schedule, table, choice.slicing)
            spent += len(operations.rows)
            tried[choice] = list_schedule(operations, choice.preference, fit.capacity)
        program = tried[choice]
        return np.inf if program is None else program.seconds

    order, dispatcher = next(iter(fits)), next(iter(problem.tables))
    few = min(4, problem.most_slices)
    sliced = Slicing(few, few, min(2, few), cost=problem.slice_cost)
    whole = Slicing(cost=problem.slice_cost)
    best = min((Choice(order, dispatcher, x) for x in (sliced, whole)), key=seconds)
    while True:
        before = best
        for neighbours in _dimensions(problem, tuple(fits)):
            best = min([best, *neighbours(best)], key=seconds)
        if best == before:
            return best, tried


Neighbours = Callable[[Choice], list[Choice]]


def _dimensions(problem: Problem, orders: tuple[str, ...]) -> list[Neighbours]:
    """What can be changed of a choice, each with the values that it can have."""

    def cut(choice: Choice, **slices: Any) -> Choice:
        return replace(choice, slicing=replace(choice.slicing, **slices))

    def near(slices: int) -> list[int]:
        return [x for x in (slices // 2, slices * 2) if 1 <= x <= problem.most_slices]

    return [
        lambda x: [replace(x, dispatcher=y) for y in problem.tables],
        lambda x: [cut(x, forward=y, backward=y) for y in near(x.slicing.forward)],
        lambda x: [replace(x, preference=y) for y in Preference],
        lambda x: [cut(x, pair=3 - x.slicing.pair)] if problem.most_slices > 1 else [],
        lambda x: [cut(x, weights=not x.slicing.weights)],
        lambda x: [replace(x, order=y) for y in orders],
        lambda x: [cut(x, forward=y) for y in near(x.slicing.forward)],
    ]
