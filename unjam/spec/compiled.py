"""Compilation of inner loops, with a cache where one can be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """``numba.njit`` with its cache on disk; without one where no folder can be written.

    A read-only installation without a home directory then compiles anew in each process.
    """
    try:
        return cast(Function, numba.njit(cache=True)(function))
    except RuntimeError:  # numba finds no place for its cache
        return cast(Function, numba.njit(function))
