"""Exported orders, run by torch's pipeline runtime on 4 processes, train like a single process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_torch_csv import NAMES, build, torch_schedule

from unjam.schedule.torch_csv import from_torch_csv, to_torch_csv

RANKS = 4
SECONDS = 60  # all schedules together; a hang is a failure by then
WORKER = Path(__file__).with_name("pipelining_worker.py")
# Orders of torch, read and written again: split backwards, a V, and pairs that torch chose.
IMPORTED = ("ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV")
SIZES = ((1, 8), (2, 8), (2, 10))  # V and M; 10 is no multiple of the ranks
OURS = {
    f"{name}-v{v}-m{m}": schedule
    for name in NAMES
    for v, m in SIZES
    if (schedule := build(name, RANKS, v, m))
}


def exported() -> dict[str, str]:
    """CSV by label: our schedules with one copy of the weights; torch's after a round trip."""
    out = {label: to_torch_csv(schedule) for label, schedule in OURS.items()}
    for kind in IMPORTED:
        order = torch_schedule(kind, RANKS, 2, 8).pipeline_order
        rows = [",".join(str(x or "") for x in order[r]) for r in range(RANKS)]
        out[kind] = to_torch_csv(from_torch_csv("\n".join(rows), kind))
    return out


def launch(folder: Path) -> list[str]:
    """Run all ranks; returns what each wrote to stderr."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    if "lo" in (name for _, name in socket.if_nameindex()):
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host name need not resolve
    logs = [folder / f"{r}.log" for r in range(RANKS)]
    processes = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, str(WORKER), str(rank), str(RANKS), str(folder)]
            with log.open("w") as stream:
                processes.append(subprocess.Popen(command, env=env, stderr=stream))
        end = time.monotonic() + SECONDS
        for process in processes:
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                break
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [log.read_text() for log in logs]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """Results of each rank by schedule, and the logs. All schedules share a launch."""
    folder = tmp_path_factory.mktemp("pipelining")
    for label, text in exported().items():
        (folder / f"{label}.csv").write_text(text)
    logs = launch(folder)
    files = [folder / f"{r}.json" for r in range(RANKS)]
    found = [json.loads(x.read_text()) if x.exists() else {} for x in files]
    return found, "\n".join(x[-3000:] for x in logs)


@pytest.mark.parametrize("label", [*OURS, *IMPORTED])
def test_gradients_equal_single_process_bitwise(
    label: str, results: tuple[list[dict[str, Any]], str]
) -> None:
    ranks, logs = results
    assert all(label in x for x in ranks), f"did not finish within {SECONDS} s:\n{logs}"
    assert [x[label]["differ"] for x in ranks] == [[]] * RANKS
    equal = [name for x in ranks for name in x[label]["equal"]]
    chunks, micro_batches = (
        (OURS[label].chunks, OURS[label].micro_batches) if label in OURS else (2, 8)
    )
    assert len(set(equal)) == len(equal) == 6 * chunks * RANKS + micro_batches
    assert sum(x[label]["sensitive"] for x in ranks) > 0  # another order of sums would show


def test_pairs_split_backwards_and_a_v_are_among_them() -> None:
    texts = exported()
    assert "OVERLAP_F_B" in texts["adaptive-v2-m8"]
    assert "OVERLAP_F_B" in texts["ScheduleDualPipeV"]
    assert {"7F0", "7I0", "7W0", "0I0"} <= set(
        texts["ScheduleZBVZeroBubble"].splitlines()[0].split(",")
    )
