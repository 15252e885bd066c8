"""A checked `JobSpec` from what a user typed."""

from __future__ import annotations

import math
from typing import cast, get_args

from unjam.spec.errors import InputError
from unjam.spec.strategy import DEFAULT_IMBALANCE, Dtype, JobSpec

MOST = 10**9  # any size beyond it is a slip; products of two still fit into 64 bits


def job_spec(
    *,
    devices: int,
    seq_len: int,
    global_batch: int,
    dtype: str = "bf16",
    imbalance: float | None = None,
) -> JobSpec:
    """A job whose sizes make sense; whether they divide is the search's business.

    Raises:
        InputError: a size that is not from 1 to `MOST`, an unknown dtype, an imbalance below 1.
    """
    sizes = {"--devices": devices, "--seq-len": seq_len, "--global-batch": global_batch}
    for name, value in sizes.items():
        if not 1 <= value <= MOST:
            raise InputError(f"{name} {value}: must be an integer from 1 to {MOST}")
    if dtype not in get_args(Dtype):
        raise InputError(f"--dtype {dtype}: unknown; use {' or '.join(get_args(Dtype))}")
    factor = DEFAULT_IMBALANCE if imbalance is None else imbalance
    if not (math.isfinite(factor) and factor >= 1):
        raise InputError(
            f"--imbalance {factor:g}: must be at least 1 (heaviest expert over the mean)"
        )
    return JobSpec(
        devices=devices,
        seq_len=seq_len,
        global_batch=global_batch,
        dtype=cast(Dtype, dtype),
        imbalance=factor,
    )
