"""unjam takes the traffic jams out of Mixture-of-Experts training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unjam.search.result import SearchResult
    from unjam.spec.strategy import Dtype

__version__ = "0.1.0"
__all__ = ["__version__", "plan"]


def plan(
    model: str,
    cluster: str,
    *,
    devices: int,
    seq_len: int,
    global_batch: int,
    dtype: Dtype = "bf16",
    imbalance: float | None = None,
    top: int = 10,
    fixed: Mapping[str, int | str] | None = None,
) -> SearchResult:
    """Find the fastest parallel strategies that fit; `unjam plan` from Python.

    Args:
        model: a preset's name, or the path of a Hugging Face ``config.json`` or its directory.
        cluster: a preset's name, or the path of a cluster YAML file.
        devices: devices to use.
        seq_len: tokens of a sequence.
        global_batch: sequences of one step.
        dtype: matmul precision, ``bf16`` or ``fp8``.
        imbalance: tokens of the heaviest expert over the mean; None = the default of `JobSpec`.
        top: how many parallel shapes to return.
        fixed: degrees and options to hold, e.g. ``{"tp": 8, "dispatcher": "dedup"}``.

    Raises:
        InputError: the input cannot be used, or nothing fits; one line with a fix.
    """
    # Loaded on demand: the command line answers --help before numpy and numba are there.
    from unjam.search.planner import plan_job  # noqa: PLC0415
    from unjam.spec.clusters import load_cluster  # noqa: PLC0415
    from unjam.spec.jobs import job_spec  # noqa: PLC0415
    from unjam.spec.models import load_model  # noqa: PLC0415

    spec, _ = load_model(model)
    job = job_spec(
        devices=devices,
        seq_len=seq_len,
        global_batch=global_batch,
        dtype=dtype,
        imbalance=imbalance,
    )
    return plan_job(spec, load_cluster(cluster), job, top=top, fixed=fixed)
