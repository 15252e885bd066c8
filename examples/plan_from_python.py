"""Plan Qwen3-30B-A3B on two DGX H100 nodes and see what a different EP would cost."""

import unjam

JOB = {"devices": 16, "seq_len": 4096, "global_batch": 256}

result = unjam.plan("qwen3-30b-a3b", "h100", **JOB)
best = result.best[0]
print(f"best: {best.strategy}, {best.prediction.step_seconds:.2f} s a step")

for ep in (1, 8, 16):
    found = unjam.plan("qwen3-30b-a3b", "h100", **JOB, fixed={"ep": ep}).best[0]
    loss = found.prediction.step_seconds / best.prediction.step_seconds - 1
    print(f"EP{ep}: {found.strategy}, {loss:+.1%}")
