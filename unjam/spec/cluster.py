"""On what it is trained: devices and the links between them.

Bandwidths are per device and one way; a device can send and receive at that rate at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as its framework sees it.

    Attributes:
        name: product name.
        peak_flops: dense peak FLOP/s by dtype (``bf16``, ``fp8``, ``fp32``), no sparsity.
        memory_bytes: HBM bytes.
        memory_bytes_per_second: HBM bandwidth.
        reserved_bytes: bytes that driver, runtime and collective library take from `memory_bytes`.
        matmul_efficiency: share of the peak that a large matmul reaches, per dtype.
        grouped_matmul_efficiency: the same for a grouped matmul with large groups.
        attention_efficiency: the same for flash attention, forward.
        attention_backward_efficiency: the same, backward.
        vector_efficiency: share of the HBM bandwidth that element-wise kernels reach.
        tile: a matmul's dimensions are rounded up to a multiple of this, in elements.
        half_rows: matmul rows (tokens) at which half of `matmul_efficiency` is reached.
        kernel_seconds: time from one kernel to the next when the kernel itself is empty.
        overlap_slowdown: share of the compute rate that EP communication takes from the kernels
            beside it (cores that copy, memory bandwidth).
    """

    name: str
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_bytes_per_second: float
    reserved_bytes: float
    matmul_efficiency: Mapping[str, float]
    grouped_matmul_efficiency: Mapping[str, float]
    attention_efficiency: float
    attention_backward_efficiency: float
    vector_efficiency: float
    tile: int
    half_rows: float
    kernel_seconds: float
    overlap_slowdown: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkTier:
    """Links that join groups of `span` devices.

    Attributes:
        name: e.g. ``"HCCS"``, ``"RoCE"``.
        span: number of consecutive devices that this tier joins; 0 = the whole cluster.
        bytes_per_second: nominal bandwidth per device, one way.
        efficiency: share of it that a large message reaches.
        latency_seconds: time of an empty message.
        half_bytes: message size at which half of the bandwidth is reached.
        devices_per_nic: devices that share one network card; a card carries
            ``devices_per_nic * bytes_per_second`` whoever of them sends.
        one_to_one: whether the links form a full mesh of point-to-point links, so that a pair of
            devices gets only ``bytes_per_second / (span - 1)`` while all-to-all gets all of it.
    """

    name: str
    span: int
    bytes_per_second: float
    efficiency: float
    latency_seconds: float
    half_bytes: float
    devices_per_nic: int = 1
    one_to_one: bool = False


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A homogeneous cluster.

    Attributes:
        name: what the user called it.
        device: the accelerator.
        devices_per_node: devices in one machine (or one NVLink domain): the span of tier 0.
        max_devices: devices that there are; the planner may use fewer.
        tiers: links from the innermost outwards; the last one has span 0.
        sources: where each number comes from, by dotted field path.
        calibrated_on: what the efficiencies were fitted to, in words.
    """

    name: str
    device: Device
    devices_per_node: int
    max_devices: int
    tiers: tuple[LinkTier, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    calibrated_on: str = "published peaks and typical efficiencies; no measured run"
