"""Compilation survives a machine on which nothing can be cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import pytest

from unjam.spec.compiled import compiled


def test_without_a_place_for_the_cache_it_compiles_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    njit = numba.njit

    def read_only(*args: Any, cache: bool = False) -> Callable[..., Any]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*args)

    monkeypatch.setattr(numba, "njit", read_only)

    def twice(x: int) -> int:
        return 2 * x

    assert compiled(twice)(21) == 42
