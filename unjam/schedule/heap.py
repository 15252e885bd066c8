"""A binary heap of (key, item) in two arrays, smallest first, for compiled loops."""

from __future__ import annotations

from unjam.schedule.overlap import IntArray
from unjam.spec.compiled import compiled


@compiled
def push(keys: IntArray, items: IntArray, size: int, key: int, item: int) -> int:
    """Add one pair to a heap of `size` pairs; returns the new size."""
    i = size
    while i > 0:
        above = (i - 1) >> 1
        if keys[above] < key or (keys[above] == key and items[above] <= item):
            break
        keys[i], items[i] = keys[above], items[above]
        i = above
    keys[i], items[i] = key, item
    return size + 1


@compiled
def pop(keys: IntArray, items: IntArray, size: int) -> int:
    """Remove the smallest pair, which is ``keys[0], items[0]``; returns the new size."""
    size -= 1
    key, item = keys[size], items[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            keys[other] < keys[child]
            or (keys[other] == keys[child] and items[other] < items[child])
        ):
            child = other
        if keys[child] > key or (keys[child] == key and items[child] >= item):
            break
        keys[i], items[i] = keys[child], items[child]
        i = child
    keys[i], items[i] = key, item
    return size
