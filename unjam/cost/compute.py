"""Seconds of operators on one device: a roofline whose compute roof depends on the shape.

A matmul ``[m, k] x [k, n]`` reaches ``peak * efficiency * m / (m + half_rows)`` after k and n are
rounded up to the device's tile, or the memory roof, whichever is lower
[Williams et al. 2009, "Roofline"]. All arguments broadcast; results are float64 seconds.
"""

from __future__ import annotations

import numpy as np

from unjam.cost.batch import FloatArray
from unjam.spec.cluster import Device

Number = FloatArray | float | int

BF16_BYTES = 2


def peak_flops(device: Device, dtype: str) -> float:
    """Peak FLOP/s of `dtype`; a device without it computes in bf16."""
    return device.peak_flops.get(dtype, device.peak_flops["bf16"])


def _ceil_to(x: Number, tile: int) -> FloatArray:
    return np.asarray(np.ceil(np.asarray(x, dtype=np.float64) / tile) * tile)


def _matmul(
    device: Device, rows: Number, inputs: Number, outputs: Number, groups: Number, rate: FloatArray
) -> FloatArray:
    rows = np.asarray(rows, dtype=np.float64)
    flops = 2.0 * rows * _ceil_to(inputs, device.tile) * _ceil_to(outputs, device.tile)
    compute = groups * flops / rate
    inputs, outputs = np.asarray(inputs, np.float64), np.asarray(outputs, np.float64)
    elements = rows * inputs + inputs * outputs + rows * outputs
    memory = groups * BF16_BYTES * elements / device.memory_bytes_per_second
    return np.asarray(np.maximum(compute, memory) + device.kernel_seconds)


def matmul_seconds(
    device: Device, dtype: str, rows: Number, inputs: Number, outputs: Number
) -> FloatArray:
    """One matmul ``[rows, inputs] x [inputs, outputs]``; 0 rows cost one empty kernel."""
    efficiency = device.matmul_efficiency.get(dtype, device.matmul_efficiency["bf16"])
    rows = np.asarray(rows, dtype=np.float64)
    rate = peak_flops(device, dtype) * efficiency * _fill(rows, device.half_rows)
    return _matmul(device, rows, inputs, outputs, 1, rate)


def grouped_matmul_seconds(
    device: Device, dtype: str, groups: Number, rows: Number, inputs: Number, outputs: Number
) -> FloatArray:
    """`groups` matmuls in one kernel, each of `rows` rows."""
    table = device.grouped_matmul_efficiency
    rows = np.asarray(rows, dtype=np.float64)
    efficiency = table.get(dtype, table["bf16"])
    rate = peak_flops(device, dtype) * efficiency * _fill(rows, device.half_rows)
    return _matmul(device, rows, inputs, outputs, groups, rate)


def _fill(rows: FloatArray, half_rows: float) -> FloatArray:
    # An empty matmul does no work: any positive rate gives its zero seconds.
    return np.asarray(np.where(rows > 0, rows / (rows + half_rows), 1.0))


def attention_seconds(device: Device, flops: Number, *, backward: bool = False) -> FloatArray:
    """Fused attention of `flops`; backward flops are the caller's to count. Always bf16."""
    share = device.attention_backward_efficiency if backward else device.attention_efficiency
    return np.asarray(flops, np.float64) / (peak_flops(device, "bf16") * share)


def vector_seconds(device: Device, moved_bytes: Number, kernels: int = 1) -> FloatArray:
    """Element-wise work that reads and writes `moved_bytes` of HBM in all."""
    rate = device.memory_bytes_per_second * device.vector_efficiency
    return np.asarray(moved_bytes, np.float64) / rate + kernels * device.kernel_seconds
