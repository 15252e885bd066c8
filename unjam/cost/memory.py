"""Bytes of one device: what stays over the step, and what a micro-batch leaves in each layer.

Parameters fall into three buckets: cut by TP, replicated over TP, and routed experts (cut by
``ETP * EP``). Weights are bf16, gradients accumulate in fp32, AdamW keeps an fp32 master copy and
two moments; ZeRO stages shard optimizer, gradients and weights over the data-parallel ranks
[Rajbhandari et al. 2020; Megatron-LM distributed optimizer].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.cost.batch import Batch, FloatArray, IntArray
from unjam.cost.compute import BF16_BYTES
from unjam.cost.dispatch import forwarded_rows
from unjam.cost.layer import LayerContext, shards
from unjam.spec.model import Attention, DenseFFN, Layer, Linear, MoE

GRADIENT_BYTES = 4
OPTIMIZER_BYTES = 12
# An fp8 copy and its transpose beside the bf16 weight [Transformer Engine].
FP8_WEIGHT_BYTES = 2
# Allocator overhead on activations; estimate, to be replaced by calibration.
FRAGMENTATION = 0.05
# Share of a device that a plan may fill: the rest is for peaks that no average shows (a batch with
# hotter experts than usual, allocator spikes). Estimate; training jobs above 96 % tend to fail.
USABLE_SHARE = 0.96
# The loss keeps the fp32 softmax for its backward; bf16 logits and gradient live for a moment.
SOFTMAX_BYTES = 4
LOGIT_BYTES = 4


@dataclass(frozen=True)
class ParameterBuckets:
    """Parameters that one rank holds, ``[N]`` each.

    Attributes:
        dense: everything but routed experts; its data-parallel group is CP * DP.
        routed: routed experts; their data-parallel group is EDP.
    """

    dense: FloatArray
    routed: FloatArray


def _per_rank(linears: tuple[Linear, ...], tp: IntArray) -> FloatArray:
    """Parameters of `linears` that one TP rank holds, ``[N]``."""
    cut = [x.params / shards(x, tp) for x in linears if x.shard != "replicated"]
    whole = sum(x.params for x in linears if x.shard == "replicated")
    return np.asarray(sum(cut) + np.full(tp.shape, float(whole)))


def layer_parameters(layer: Layer, batch: Batch) -> ParameterBuckets:
    """Parameters of one layer on each rank; a shared expert is whole on every rank."""
    dense = np.full(len(batch), float(layer.norm_params + layer.other_params))
    if layer.attention:
        dense += _per_rank(layer.attention.linears, batch.tp) + layer.attention.other_params
    if isinstance(layer.ffn, DenseFFN):
        dense += _per_rank(layer.ffn.linears, batch.tp)
    elif layer.moe:
        dense += layer.moe.params - layer.moe.routed_params
    return ParameterBuckets(dense, layer.routed_params / (batch.ep * batch.etp))


@dataclass(frozen=True)
class StaticBytes:
    """Bytes that stay over the step, ``[N]`` each."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray


def static_bytes(params: ParameterBuckets, batch: Batch, dtype: str) -> StaticBytes:
    """Weights, gradients and optimizer states of `params` under the batch's ZeRO stages."""
    weight = BF16_BYTES + (FP8_WEIGHT_BYTES if dtype == "fp8" else 0)
    dense_ranks, routed_ranks = batch.cp * batch.dp, batch.edp

    def sharded(per_parameter: float, stage: int) -> FloatArray:
        dense = params.dense / np.where(batch.zero >= stage, dense_ranks, 1)
        routed = params.routed / np.where(batch.zero >= stage, routed_ranks, 1)
        return np.asarray(per_parameter * (dense + routed))

    return StaticBytes(sharded(weight, 3), sharded(GRADIENT_BYTES, 2), sharded(OPTIMIZER_BYTES, 1))


@dataclass(frozen=True)
class LayerBytes:
    """Bytes of activations of one layer and micro-batch, ``[N]`` each.

    Attributes:
        kept: held from forward to backward.
        working: held for a moment in backward: what is computed again, dispatch buffers.
    """

    kept: FloatArray
    working: FloatArray


def layer_bytes(context: LayerContext, layer: Layer) -> LayerBytes:
    """Activations of one layer under every strategy of the batch.

    Counted: inputs of matmuls, norms, activations and fused attention, which autograd saves.
    """
    batch = context.batch
    row = context.own_tokens * context.model.hidden * BF16_BYTES
    kept = row * layer.norms  # norm inputs: the residual stream and sandwich norms
    dropped = np.zeros(len(batch))
    outputs = row * (bool(layer.attention) + bool(layer.ffn))
    kept, dropped = _keep(kept, dropped, outputs, batch, ("layernorm",))
    if layer.attention:
        always, up = _attention_bytes(context, layer.attention)
        kept = kept + always
        kept, dropped = _keep(kept, dropped, up, batch, ("mla_up_proj",))
    working = np.zeros(len(batch))
    if isinstance(layer.ffn, DenseFFN):
        saved = 3 * context.tokens * layer.ffn.width / batch.tp * BF16_BYTES
        kept, dropped = _keep(kept, dropped, saved, batch, ("mlp",))
    elif layer.moe:
        always, act, shared = _moe_bytes(context, layer.moe)
        kept, dropped = _keep(kept, dropped, always, batch, ("moe",))
        kept, dropped = _keep(kept, dropped, act, batch, ("moe", "moe_act"))
        kept, dropped = _keep(kept, dropped, shared, batch, ("moe", "shared_experts"))
        rows = 2 * context.received(layer.moe)
        rows += forwarded_rows(context.cluster, layer.moe, batch, context.own_tokens)
        working = rows * context.model.hidden * BF16_BYTES
    full = batch.recomputes("full")
    whole = kept + dropped
    return LayerBytes(np.where(full, row, kept), working + np.where(full, whole, dropped))


def _keep(
    kept: FloatArray, dropped: FloatArray, size: FloatArray, batch: Batch, modules: tuple[str, ...]
) -> tuple[FloatArray, FloatArray]:
    """Book `size` as dropped where one of `modules` is recomputed, else as kept."""
    again = np.logical_or.reduce([batch.recomputes(x) for x in modules])
    return kept + np.where(again, 0.0, size), dropped + np.where(again, size, 0.0)


def _attention_bytes(context: LayerContext, attention: Attention) -> tuple[FloatArray, FloatArray]:
    """Bytes that are always kept, and those of MLA's up-projections (queries, keys, values)."""
    tokens, tp = context.tokens, context.batch.tp
    latents = sum(x.outputs for x in attention.linears if x.shard == "replicated")
    kept = 2 * context.own_tokens * latents * BF16_BYTES  # before and after their norm
    out = tokens / tp * attention.heads * attention.v_head_dim * BF16_BYTES
    statistics = tokens / tp * attention.heads * 4
    kv_heads = attention.kv_heads / np.minimum(tp, max(attention.kv_heads, 1))
    width = attention.heads / tp * attention.qk_head_dim
    width = width + kv_heads * (attention.qk_head_dim + attention.v_head_dim)
    qkv = tokens * width * BF16_BYTES
    if attention.kind == "mla":
        return kept + out + statistics, qkv
    return kept + out + statistics + qkv, np.zeros(len(context.batch))


def _moe_bytes(context: LayerContext, moe: MoE) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bytes kept unless the whole MoE is recomputed; the activation's output; the shared expert."""
    batch = context.batch
    received = context.received(moe)
    scores = context.own_tokens * moe.experts * 4 * 2
    inputs = received * context.model.hidden * BF16_BYTES
    gate_up = received * 2 * moe.expert_width / batch.etp * BF16_BYTES
    act = received * moe.expert_width / batch.etp * BF16_BYTES
    shared = 3 * context.own_tokens * moe.shared_width * BF16_BYTES
    return scores + inputs + gate_up, act, shared


def head_bytes(context: LayerContext) -> LayerBytes:
    """Activations of the output head and its loss for one micro-batch, the vocabulary cut by TP."""
    logits = context.tokens * context.model.vocab / context.batch.tp
    hidden = context.own_tokens * context.model.hidden * BF16_BYTES
    return LayerBytes(hidden + logits * SOFTMAX_BYTES, logits * LOGIT_BYTES)
