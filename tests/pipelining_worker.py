"""One rank of a pipeline run by torch.distributed.pipelining; `test_torch_runtime.py` starts it.

    python pipelining_worker.py RANK RANKS FOLDER

Runs every ``FOLDER/*.csv`` (compute_only, one row per rank) and writes to ``FOLDER/RANK.json`` how
the gradients of this rank's stages compare, bit for bit, with those of a single process.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

WIDTH, ROWS = 16, 3  # features; rows of a micro-batch
SECONDS = 20  # longest wait for another rank, and for a schedule


def stage_module(stage: int) -> nn.Sequential:
    """The layers of a stage; the same on every rank that asks."""
    torch.manual_seed(stage)
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    )


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum()


def batch(micro_batches: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1000)
    x, target = torch.randn(2, micro_batches * ROWS, WIDTH).unbind()
    return x, target


def read_orders(file: Path) -> list[list[_Action]]:
    """Passes of each rank with pairs taken apart, read by torch's parser."""
    out = []
    for line in file.read_text().splitlines():
        actions = [_Action.from_str(cell) for cell in line.split(",")]
        out.append([part for x in actions if x for part in (x.sub_actions or (x,))])
    return out


def reference(stages: int, micro_batches: int) -> tuple[list[Tensor], list[list[list[Tensor]]]]:
    """Losses, and gradients by micro-batch, stage and parameter, of one unsplit model."""
    modules = [stage_module(s) for s in range(stages)]
    parameters = [p for module in modules for p in module.parameters()]
    x, target = batch(micro_batches)
    losses, gradients = [], []
    for part, goal in zip(x.split(ROWS), target.split(ROWS), strict=True):
        loss = loss_of(nn.Sequential(*modules)(part), goal)
        losses.append(loss.detach())
        flat = iter(torch.autograd.grad(loss, parameters))
        gradients.append([[next(flat) for _ in module.parameters()] for module in modules])
    return losses, gradients


def summed(parts: Sequence[Tensor]) -> Tensor:
    """The sum in the given order; float addition is not associative, so the order shows."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def run(file: Path, rank: int, ranks: int) -> dict[str, Any]:
    """One step of a schedule, compared with the single process.

    A stage adds the gradients of its micro-batches in the order of its B and W in the schedule, so
    the reference is summed in that order too. Gradients are not divided by the micro-batches.
    """
    orders = read_orders(file)
    everything = [x for order in orders for x in order]
    count = 1 + max(x.stage_index for x in everything)
    micro_batches = 1 + max(x.microbatch_index or 0 for x in everything)
    mine = sorted({x.stage_index for x in orders[rank]})
    stages = [PipelineStage(stage_module(s), s, count, torch.device("cpu")) for s in mine]
    runtime = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=loss_of, scale_grads=False)
    runtime._load_csv(str(file))
    x, target = batch(micro_batches)
    losses: list[Tensor] = []
    runtime.step(
        *([x] if 0 in mine else []),
        target=target if count - 1 in mine else None,
        losses=losses if count - 1 in mine else None,
    )
    true_losses, gradients = reference(count, micro_batches)
    equal: list[str] = []
    differ: list[str] = []
    sensitive = 0
    for stage in stages:
        s = stage.stage_index
        weights = [x for x in orders[rank] if x.stage_index == s and x.computation_type in "BW"]
        order = [x.microbatch_index or 0 for x in weights]
        for i, (name, value) in enumerate(stage.submod.named_parameters()):
            parts = [gradients[m][s][i] for m in order]
            same = value.grad is not None and torch.equal(value.grad, summed(parts))
            (equal if same else differ).append(f"stage {s} {name}")
            sensitive += not torch.equal(summed(parts), summed(parts[::-1]))
    for m, loss in enumerate(losses):
        (equal if torch.equal(loss, true_losses[m]) else differ).append(f"loss {m}")
    return {"equal": equal, "differ": differ, "sensitive": sensitive}


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=SECONDS)
    )
    results: dict[str, Any] = {}
    for file in sorted(folder.glob("*.csv")):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(f"rank {rank}: {file.name}", file=sys.stderr, flush=True)
        results[file.stem] = run(file, rank, ranks)
        (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
