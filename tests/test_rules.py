"""Validity rules: data and sentences agree, and each framework rule bites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import small_cluster, small_model
from hypothesis import given
from hypothesis import strategies as st

from unjam.cost.batch import RECOMPUTE_NAMES, batch_of
from unjam.search.rules import explain_invalid, first_violation, rules
from unjam.spec.strategy import DISPATCHERS, SCHEDULES, JobSpec, Strategy

JOB = JobSpec(devices=64, seq_len=1024, global_batch=128)
GOOD = Strategy(
    tp=2, pp=4, vpp=2, ep=8, etp=1, cp=1, dp=8, mbs=1, schedule="adaptive", dispatcher="flat"
)
MODEL = small_model(layers=8)


def reasons(job: JobSpec = JOB, **changes: object) -> list[str]:
    return explain_invalid(MODEL, small_cluster(), job, replace(GOOD, **changes))  # type: ignore[arg-type]


def test_a_valid_strategy_breaks_nothing() -> None:
    assert reasons() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 3}, "TP 3"),
        ({"dp": 7}, "is not 64 devices"),
        ({"dp": 0}, "at least 1"),
        ({"tp": -1}, "at least 1"),
        ({"mbs": 3}, "no multiple of MBS 3"),
        ({"ep": 6}, "16 routed experts do not divide by EP 6"),
        ({"etp": 2}, "ETP 1"),
        ({"vpp": 1}, "VPP > 1"),
        ({"vpp": 8}, "stages"),
        ({"schedule": "1f1b"}, "one chunk"),
        ({"recompute": "full"}, "recompute"),
        ({"recompute": "act+mla"}, "no more of this model"),
        ({"dispatcher": "dedup"}, "span whole nodes"),
        ({"zero": 3}, "ZeRO-3"),
        ({"layout": "Ettt|L"}, "stages"),
        ({"layout": "Ezz"}, "character 2"),
        ({"schedule": "zigzag"}, "unknown"),
    ],
)
def test_each_rule_says_what_is_wrong(changes: dict[str, object], words: str) -> None:
    found = reasons(**changes)
    assert any(words in x for x in found), found
    assert all("\n" not in x and "{" not in x for x in found)


def test_cp_needs_a_sequence_that_divides() -> None:
    odd = replace(JOB, seq_len=1026)
    assert any("sequence 1026" in x for x in reasons(odd, cp=2, dp=4))


def test_a_dense_model_has_no_experts_to_spread() -> None:
    dense = small_model(layers=8, dense=8)
    found = explain_invalid(dense, small_cluster(), JOB, GOOD)
    assert any("dense model" in x for x in found)


@given(
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    pp=st.sampled_from([1, 2, 3, 4, 8]),
    vpp=st.integers(1, 4),
    ep=st.sampled_from([1, 2, 4, 5, 8, 16]),
    etp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2, 4]),
    mbs=st.sampled_from([1, 2, 3]),
    recompute=st.sampled_from(RECOMPUTE_NAMES),
    dispatcher=st.sampled_from(DISPATCHERS),
    schedule=st.sampled_from(SCHEDULES),
)
def test_arrays_and_sentences_agree(**values: object) -> None:
    used = values["tp"] * values["pp"] * values["cp"]  # type: ignore[operator]
    strategy = Strategy(**values, dp=max(64 // used, 1))  # type: ignore[arg-type]
    batch = batch_of([strategy])
    fields = {x: getattr(batch, x) for x in vars(batch)}
    per_step = strategy.dp * strategy.mbs
    whole = JOB.global_batch % per_step == 0
    fields["micro_batches"] = np.array([JOB.global_batch // per_step if whole else 0])
    index = first_violation(rules(MODEL, small_cluster(), JOB), fields)[0]
    said = explain_invalid(MODEL, small_cluster(), JOB, strategy)
    assert (index >= 0) == bool(said)
