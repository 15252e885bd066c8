"""Layout notation and balanced layouts against brute force."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unjam.search.layout import POWER, balanced_layout
from unjam.spec.errors import InputError
from unjam.spec.layout import check_layout, format_layout, parse_layout

stages = st.lists(st.text("EtmL", max_size=6).map(tuple), min_size=1, max_size=12).map(tuple)


@given(stages)
def test_parse_inverts_format(layout: tuple[tuple[str, ...], ...]) -> None:
    assert parse_layout(format_layout(layout)) == layout


@pytest.mark.parametrize(
    ("text", "count", "t", "m"),
    [
        ("Et*3|(tt|)*29mL", 31, 61, 1),
        ("Et|(tt|)*30mL", 32, 61, 1),
        ("Et*4|(t*4|)*14tmL", 16, 61, 1),
        ("Et*3|(tt|)*29,m|L", 32, 61, 1),
        ("Et|(tt|)*30L", 32, 61, 0),
    ],
)
def test_published_layouts_parse(text: str, count: int, t: int, m: int) -> None:
    parsed = parse_layout(text)
    flat = [x for stage in parsed for x in stage]
    assert (len(parsed), flat.count("t"), flat.count("m")) == (count, t, m)
    assert parse_layout(format_layout(parsed)) == parsed


@pytest.mark.parametrize("bad", ["Ex|L", "(tt|*3", "t*", "tt)|L", "t*999999999"])
def test_bad_notation_is_one_clear_line(bad: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layout(bad)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Ett|ttmL", None),
        ("Ett|ttL", "1 MTP"),
        ("Ettm|ttL", "before"),
        ("ttE|ttmL", "start"),
        ("Ett|tt|mL", "stages"),
        ("Etttmt|L", "before"),
        ("Ettttm|L", "rank 0"),
    ],
)
def test_megatron_rules_for_layouts(text: str, wrong: str | None) -> None:
    found = check_layout(parse_layout(text), layers=4, mtp=1, ranks=2, chunks=1)
    assert (found is None) if wrong is None else (found is not None and wrong in found)


def cost(counts: list[int], layers: np.ndarray, first: float, last: float) -> float:
    edges = np.cumsum([0, *counts])
    loads = [layers[a:b].sum() for a, b in pairwise(edges)]
    loads[0] += first
    loads[-1] += last
    return float(np.sum(np.array(loads) ** POWER))


@given(
    count=st.integers(1, 4),
    layers=st.lists(st.floats(0.2, 3.0), min_size=1, max_size=8),
    head=st.floats(0.0, 3.0),
)
def test_layout_equals_brute_force(count: int, layers: list[float], head: float) -> None:
    load = np.array(layers)
    layout = balanced_layout(count, count, load, head, np.zeros(0), 0.1)
    chosen = [stage.count("t") for stage in layout]
    n = len(layers)
    best = min(
        cost(list(np.diff([0, *cuts, n])), load, 0.1, head)
        for cuts in combinations(sorted(list(range(n + 1)) * (count - 1)), count - 1)
    )
    assert sum(chosen) == n
    assert cost(chosen, load, 0.1, head) == pytest.approx(best)


@given(
    pp=st.integers(1, 8), vpp=st.integers(1, 4), layers=st.integers(1, 64), mtp=st.integers(0, 2)
)
def test_layouts_keep_megatrons_rules(pp: int, vpp: int, layers: int, mtp: int) -> None:
    chunks = vpp if pp > 1 else 1
    layout = balanced_layout(pp * chunks, pp, np.ones(layers), 1.5, np.ones(mtp), 0.1)
    assert check_layout(layout, layers, mtp, pp, chunks) is None


def test_pangu_fills_32_stages_evenly() -> None:
    # 61 layers, one MTP module and two passes through a head of one layer each are 64 = 32 x 2.
    layout = balanced_layout(32, 16, np.ones(61), 2.0, np.ones(1), 0.1)
    assert format_layout(layout) == "Ett|(tt|)*29tm|L"
