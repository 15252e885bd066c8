"""Wall time, memory and pruning of the planner, and what it predicts for published runs.

Run: ``python bench/plan_speed.py``. Each case runs in a process of its own, twice; the second run
has compiled code in its cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

# Model, cluster, devices, sequence, global batch, and what is held.
CASES = (
    ("pangu-ultra-moe-718b", "atlas-800t-a2", 4096, 8192, 4096, ""),
    ("pangu-ultra-moe-718b", "atlas-800t-a2", 4096, 8192, 4096, "dispatcher=allgather"),
    ("pangu-ultra-moe-718b", "atlas-800t-a2", 6144, 8192, 6144, ""),
    ("pangu-ultra-moe-718b", "atlas-800t-a2", 6144, 8192, 6144, "dispatcher=allgather"),
    ("deepseek-v3", "h800", 2048, 4096, 15360, ""),
)
LIMITS = {"seconds": 30.0, "mib": 1024.0, "help_seconds": 0.3}

_MEASURE = """
import json, resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"seconds": time.perf_counter() - begin, "mib": usage.ru_maxrss / 1024,
                  "out": done.stdout, "err": done.stderr}))
"""


def measure(*arguments: str) -> dict[str, object]:
    """Run `unjam` with `arguments` in its own process; seconds, peak MiB, output."""
    command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "unjam.cli", *arguments]
    measured: dict[str, object] = json.loads(subprocess.check_output(command, text=True))
    return measured


def plan_case(model: str, cluster: str, devices: int, seq_len: int, batch: int, held: str) -> None:
    arguments = (
        *("plan", model, cluster, "--devices", str(devices)),
        *("--seq-len", str(seq_len), "--global-batch", str(batch), "--json"),
        *(("--fix", held) if held else ()),
    )
    measure(*arguments)
    warm = measure(*arguments)
    result = json.loads(str(warm["out"]))
    counts, best = result["counts"], result["strategies"][0]
    print(
        f"\n{model} on {cluster}, {devices} devices, {seq_len} tokens, global batch {batch} {held}"
    )
    print(f"  wall {warm['seconds']:.1f} s (limit {LIMITS['seconds']:.0f} s)")
    print(f"  peak {warm['mib']:.0f} MiB (limit {LIMITS['mib']:.0f} MiB)")
    print(f"  {counts['raw']} strategies: {counts['invalid']} invalid, ", end="")
    print(f"{counts['pruned']} pruned by a bound, {counts['simulated']} simulated")
    degrees = " ".join(f"{k.upper()}{best[k]}" for k in ("tp", "pp", "vpp", "ep", "etp", "cp"))
    print(f"  best: {degrees} {best['schedule']}, {best['step_seconds']:.2f} s a step")
    for run in result["published"]:
        predicted = run["predicted_tokens_per_second"]
        if predicted:
            error = predicted / run["tokens_per_second"] - 1
            print(f"  published {run['label']}: {run['tokens_per_second']:.3g} tokens/s, ", end="")
            print(f"predicted {predicted:.3g} ({error:+.1%})")
    for note in result["notes"]:
        print(f"  {note}")


def help_case() -> None:
    times = []
    command = str(Path(sys.executable).with_name("unjam"))  # the console script of this environment
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([command, "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - begin)
    print(f"unjam --help: {min(times):.2f} s (limit {LIMITS['help_seconds']} s)")


if __name__ == "__main__":
    help_case()
    for case in CASES:
        plan_case(*case)
