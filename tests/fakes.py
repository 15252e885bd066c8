"""A search result made by hand, so that reports and commands are tested without a search."""

from __future__ import annotations

import numpy as np
from conftest import GIB, small_cluster, small_model

from unjam.schedule.ir import Kind, Schedule
from unjam.search.result import PublishedResult, SearchResult
from unjam.spec.plan import Prediction
from unjam.spec.strategy import JobSpec, Strategy
from unjam.twin.result import StepResult
from unjam.twin.timeline import Timeline

FORWARD, BACKWARD, PAIR = 1.0, 2.0, 2.6


def adaptive_orders(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """Lone forwards, pairs, lone backwards; micro-batches come in full groups of `ranks`."""
    groups = range(0, micro_batches, ranks)
    table = [(v, g + i) for g in groups for v in range(chunks) for i in range(ranks)]
    orders = []
    for rank in range(ranks):
        warm = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1, len(table))
        back = [(chunks - 1 - v, m) for v, m in table]
        slots = [(Kind.F, v, m, -1, -1) for v, m in table[:warm]]
        slots += [(Kind.FB, *f, *b) for f, b in zip(table[warm:], back, strict=False)]
        slots += [(Kind.B, v, m, -1, -1) for v, m in back[len(table) - warm :]]
        orders.append(np.array(slots, dtype=np.int32))
    return Schedule("adaptive", ranks, chunks, micro_batches, tuple(orders))


def run(schedule: Schedule) -> Timeline:
    """Start each slot as soon as its rank is free and its neighbours have sent."""
    last = schedule.ranks * schedule.chunks - 1
    done: dict[tuple[str, int, int], float] = {}
    starts = [[] for _ in range(schedule.ranks)]  # type: list[list[float]]
    ends = [[] for _ in range(schedule.ranks)]  # type: list[list[float]]

    def needs(stage: int, kind: str, m: int) -> list[tuple[str, int, int]]:
        if kind == "F":
            return [("F", stage - 1, m)] if stage else []
        return [("F", last, m)] if stage == last else [("B", stage + 1, m)]

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            while len(starts[rank]) < len(order):
                kind, v, m, bv, bm = order[len(starts[rank])].tolist()
                passes = [("B" if kind == Kind.B else "F", schedule.stage(rank, v), m)]
                if kind == Kind.FB:
                    passes.append(("B", schedule.stage(rank, bv), bm))
                wait = [x for k, s, i in passes for x in needs(s, k, i)]
                if any(x not in done for x in wait):
                    break
                free = ends[rank][-1] if ends[rank] else 0.0
                start = max([free, *(done[x] for x in wait)])
                length = {Kind.F: FORWARD, Kind.B: BACKWARD, Kind.FB: PAIR}[Kind(kind)]
                starts[rank].append(start)
                ends[rank].append(start + length)
                done.update({x: start + length for x in passes})
                moved = True
    assert all(len(s) == len(o) for s, o in zip(starts, schedule.orders, strict=True))
    arrays = [tuple(np.array(x) for x in side) for side in (starts, ends)]
    return Timeline(schedule, arrays[0], arrays[1])


def in_flight_gib(schedule: Schedule, gib: float) -> tuple[np.ndarray, ...]:
    """Activations held while each slot runs, `gib` per chunk and micro-batch."""
    curves = []
    for order in schedule.orders:
        gained = np.isin(order[:, 0], (Kind.F, Kind.FB)).astype(float)
        freed = np.isin(order[:, 0], (Kind.B, Kind.FB)).astype(float)
        curves.append(gib * (np.cumsum(gained) - np.concatenate([[0], np.cumsum(freed)[:-1]])))
    return tuple(curves)


def fake_step(ranks: int = 4, micro_batches: int = 8, slower: float = 1.0) -> StepResult:
    """A step of an Adaptive Pipe strategy with two chunks."""
    strategy = Strategy(
        tp=8, pp=ranks, vpp=2, ep=32, etp=1, cp=1, dp=32, mbs=1, recompute="act+mla",
        dispatcher="dedup", schedule="adaptive", layout="Et|" + "t|" * (2 * ranks - 2) + "mL",
    )  # fmt: skip
    timeline = run(adaptive_orders(ranks, 2, micro_batches))
    static = {"weights": 9.0, "gradients": 12.0, "optimizer": 6.0, "logits": 2.0, "reserved": 3.0}
    skew = np.linspace(1.0, 0.8, ranks)
    curves = in_flight_gib(timeline.schedule, 7.0 / ranks)
    activations = float(curves[0].max())
    tail = {"gradient reduce-scatter": 0.6, "optimizer": 0.4}
    step = timeline.seconds + 1.0
    busy = timeline.busy_seconds()[0]
    where = {
        "attention": 0.4 * busy, "experts and FFN": 0.45 * busy, "recomputation": 0.03 * busy,
        "TP and CP communication": 0.04 * busy, "exposed EP communication": 0.08 * busy,
        "parameter all-gather": 0.0, "pipeline bubble": timeline.seconds - busy, **tail,
    }  # fmt: skip
    prediction = Prediction(
        step_seconds=step * slower,
        tokens_per_second_per_device=300 / slower,
        mfu=0.33 / slower,
        peak_memory_gib=sum(static.values()) + activations,
        peak_memory_rank=0,
        memory_gib={"activations": activations, **static},
        exposed_comm_fraction=0.07,
        hidden_ep_fraction=0.93,
        bubble_fraction=float(1 - busy / step),
        time_seconds={k: v * slower for k, v in where.items()},
        calibrated_on="published peaks and typical efficiencies; no measured run",
    )
    seconds = {"D_f": 0.2, "C_f": 0.2, "D_b": 0.2, "C_b": 0.2, "A_f": 0.3, "E_f": 0.3}
    return StepResult(
        strategy=strategy,
        prediction=prediction,
        timeline=timeline,
        static_gib={k: v * skew for k, v in static.items()},
        activation_gib=curves,
        limit_gib=64.0,
        stage_seconds={k: np.full(2 * ranks, v) for k, v in seconds.items()},
        tail_seconds=tail,
    )


def fake_search(ranks: int = 4, micro_batches: int = 8, top: int = 3) -> SearchResult:
    """A search that found `top` strategies, each 2 % slower than the one before."""
    steps = [fake_step(ranks, micro_batches, 1.02**i) for i in range(top)]
    run_before = PublishedResult("Pangu <4K>", 4096, 0.61e6, 0.64e6, "a report, sec. 3", "GBS 4096")
    cluster = small_cluster(name="round <64 GB>")
    assert cluster.device.memory_bytes == 64 * GIB
    return SearchResult(
        model=small_model(mtp=1),
        cluster=cluster,
        job=JobSpec(devices=4096, seq_len=8192, global_batch=4096),
        best=tuple(steps),
        counts={"raw": 120_000, "invalid": 100_000, "pruned": 19_000, "simulated": 1_000},
        invalid_by_reason={"EP does not divide the experts": 70_000, "MBS": 30_000},
        pruned_by_bound={"memory": 12_000, "time": 7_000},
        seconds=4.2,
        published=(run_before, PublishedResult("6K", 6144, 1.46e6, None, "same", "does not fit")),
        notes=("the best found is 2.0% faster than the published strategy",),
    )
