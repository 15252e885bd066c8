"""Seconds of one layer's sub-operations for a batch of strategies.

A = attention with norms, router and permutation; D = dispatch; E = experts (or the dense FFN);
C = combine. Suffix f = forward, b = input gradient, w = weight gradient. Every array is ``[N]``.

With sequence parallelism a rank holds ``T / TP`` tokens outside the sharded matmuls. Attention and
dense FFN are cut by TP, routed experts by ETP. A shared expert is whole on every rank and works
on the rank's own ``T / TP`` tokens, beside the routed ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.cost.attention import BACKWARD_OVER_FORWARD, core_flops_per_token
from unjam.cost.batch import Batch, FloatArray, IntArray
from unjam.cost.compute import (
    BF16_BYTES,
    attention_seconds,
    grouped_matmul_seconds,
    matmul_seconds,
    vector_seconds,
)
from unjam.cost.dispatch import dispatch_seconds, forwarded_rows, rank_imbalance
from unjam.cost.network import all_gather_seconds
from unjam.spec.cluster import ClusterSpec
from unjam.spec.model import Attention, DenseFFN, Layer, Linear, ModelSpec, MoE
from unjam.spec.strategy import JobSpec

# Element-wise backward passes read the forward's inputs besides the gradients.
VECTOR_BACKWARD = 2.0
# Cross-entropy reads bf16 logits, writes and reads fp32 exponentials, writes the bf16 gradient.
LOSS_BYTES = 12
# fp32 scores pass softmax, top-k, mask and auxiliary loss, about six reads or writes.
ROUTER_BYTES = 6 * 4

# Rows of `LayerSeconds.matrix`: computation, EP communication, and that of TP and CP.
COMPUTE_OPERATIONS = ("A_f", "A_b", "A_w", "E_f", "E_b", "E_w", "recompute_A", "recompute_E")
EP_OPERATIONS = ("D_f", "C_f", "D_b", "C_b", "recompute_ep")
SHARD_OPERATIONS = ("shard_A_f", "shard_A_b", "shard_E_f", "shard_E_b", "recompute_shard")
SUB_OPERATIONS = (*COMPUTE_OPERATIONS, *EP_OPERATIONS, *SHARD_OPERATIONS)


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of every sub-operation of one layer and micro-batch, by `SUB_OPERATIONS`.

    ``shard_*`` is exposed communication of TP and CP; ``recompute_*`` is forward work done again.
    """

    matrix: FloatArray  # [len(SUB_OPERATIONS), N]

    def __getitem__(self, name: str) -> FloatArray:
        return np.asarray(self.matrix[SUB_OPERATIONS.index(name)])


@dataclass(frozen=True)
class LayerContext:
    """What the costs of every layer share.

    Attributes:
        model: the model.
        cluster: the cluster.
        job: the job.
        batch: N strategies.
    """

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    batch: Batch

    @property
    def tokens(self) -> FloatArray:
        """Tokens of a micro-batch in one TP group, ``MBS * S / CP``."""
        return self.batch.mbs * self.job.seq_len / self.batch.cp

    @property
    def own_tokens(self) -> FloatArray:
        """Tokens of a micro-batch that a rank holds under sequence parallelism."""
        return self.tokens / self.batch.tp

    def imbalance(self, moe: MoE) -> FloatArray:
        """Tokens of the heaviest EP rank over the mean."""
        return rank_imbalance(moe, self.batch.ep, self.job.imbalance)

    def received(self, moe: MoE) -> FloatArray:
        """Token copies that the heaviest EP rank computes."""
        return self.own_tokens * moe.top_k * self.batch.etp * self.imbalance(moe)


def layer_seconds(context: LayerContext, layer: Layer) -> LayerSeconds:
    """Cost one layer under every strategy of the batch."""
    n = len(context.batch)
    ops = {x: np.zeros(n) for x in SUB_OPERATIONS}
    _add_norms(context, layer, ops)
    if layer.attention:
        _add_attention(context, layer.attention, ops)
    if layer.moe:
        _add_moe(context, layer.moe, ops)
    elif isinstance(layer.ffn, DenseFFN):
        _add_dense(context, layer.ffn, ops)
    full = context.batch.recomputes("full")
    ops["recompute_A"] = np.where(full, ops["A_f"], ops["recompute_A"])
    ops["recompute_E"] = np.where(full, ops["E_f"], ops["recompute_E"])
    shard = ops["shard_A_f"] + ops["shard_E_f"]
    ops["recompute_shard"] = np.where(full, shard, ops["recompute_shard"])
    return LayerSeconds(np.stack([ops[x] for x in SUB_OPERATIONS]))


def _matmuls(context: LayerContext, linears: tuple[Linear, ...]) -> FloatArray:
    """Seconds of one pass through `linears`, cut by TP; gradients cost the same each."""
    device, dtype, tp = context.cluster.device, context.job.dtype, context.batch.tp
    total = np.zeros(len(context.batch))
    for x in linears:
        if x.shard == "column":
            outputs = x.outputs / shards(x, tp)
            total += matmul_seconds(device, dtype, context.tokens, x.inputs, outputs)
        elif x.shard == "row":
            total += matmul_seconds(device, dtype, context.tokens, x.inputs / tp, x.outputs)
        else:
            total += matmul_seconds(device, dtype, context.own_tokens, x.inputs, x.outputs)
    return total


def shards(linear: Linear, tp: IntArray) -> IntArray:
    """Parts that TP cuts a matrix into; beyond `Linear.most_shards` ranks hold the same part."""
    return np.minimum(tp, linear.most_shards) if linear.most_shards else tp


def _shard_seconds(context: LayerContext, linears: tuple[Linear, ...]) -> FloatArray:
    """All-gather before the column-cut matmuls and reduce-scatter after the row-cut ones.

    Matmuls that share an input share its gather, so MLA gathers its two latents, not the hidden
    state. Backward mirrors forward; its second gather, for the weight gradient, runs beside the
    input gradient [Korthikanti et al. 2022, "Reducing Activation Recomputation"].
    """
    widths = sum({x.inputs for x in linears if x.shard == "column"})
    widths += sum({x.outputs for x in linears if x.shard == "row"})
    full = context.tokens * widths * BF16_BYTES
    tp = context.batch.tp
    return all_gather_seconds(context.cluster, full, tp, np.ones_like(tp))


def _add_norms(context: LayerContext, layer: Layer, ops: dict[str, FloatArray]) -> None:
    row = context.own_tokens * context.model.hidden * BF16_BYTES
    device = context.cluster.device
    norms = vector_seconds(device, 2 * row * layer.norms, kernels=layer.norms)
    residuals = vector_seconds(device, 3 * row * 2, kernels=2)
    ops["A_f"] += norms + residuals
    ops["A_b"] += VECTOR_BACKWARD * (norms + residuals)
    ops["recompute_A"] += np.where(context.batch.recomputes("layernorm"), norms, 0.0)


def _add_attention(context: LayerContext, attention: Attention, ops: dict[str, FloatArray]) -> None:
    batch, device = context.batch, context.cluster.device
    matmuls = _matmuls(context, attention.linears)
    flops = core_flops_per_token(attention, context.job.seq_len) * context.tokens / batch.tp
    core = attention_seconds(device, flops)
    core_back = attention_seconds(device, BACKWARD_OVER_FORWARD * flops, backward=True)
    heads = attention.heads + 2 * attention.kv_heads
    rotary_bytes = context.tokens / batch.tp * heads * attention.qk_head_dim * BF16_BYTES * 2
    rotary = vector_seconds(device, rotary_bytes, kernels=3)
    ops["A_f"] += matmuls + core + rotary
    ops["A_b"] += matmuls + core_back + VECTOR_BACKWARD * rotary
    ops["A_w"] += matmuls
    shard = _shard_seconds(context, attention.linears)
    gather = _key_gather_seconds(context, attention)
    merge = _merge_seconds(context, attention)
    ops["shard_A_f"] += shard + np.maximum(gather - core, 0.0) + merge
    ops["shard_A_b"] += shard + np.maximum(2 * gather - core_back, 0.0) + 2 * merge
    up = tuple(x for x in attention.linears if x.name in {"q_b", "kv_b"})
    if attention.kind == "mla":
        again = _matmuls(context, up) + rotary
        repeated = batch.recomputes("mla_up_proj")
        ops["recompute_A"] += np.where(repeated, again, 0.0)
        ops["recompute_shard"] += np.where(repeated, _shard_seconds(context, up), 0.0)


def _key_gather_seconds(context: LayerContext, attention: Attention) -> FloatArray:
    """Context parallelism: every rank sees all keys and values, pipelined with attention."""
    batch = context.batch
    width = attention.kv_heads * (attention.qk_head_dim + attention.v_head_dim)
    parts = np.minimum(batch.tp, max(attention.kv_heads, 1))
    total = batch.mbs * context.job.seq_len * width / parts * BF16_BYTES
    return all_gather_seconds(context.cluster, total, batch.cp, batch.tp)


def _merge_seconds(context: LayerContext, attention: Attention) -> FloatArray:
    """Ring attention corrects its fp32 running output after each of CP-1 further blocks.

    Reads the block's bf16 and the running fp32 output and writes the latter
    [Liu et al. 2023, "Ring Attention"]; backward accumulates three gradients.
    """
    width = attention.heads / context.batch.tp * attention.v_head_dim
    moved = (context.batch.cp - 1) * context.tokens * width * 10
    return np.where(context.batch.cp > 1, vector_seconds(context.cluster.device, moved), 0.0)


def _add_dense(context: LayerContext, ffn: DenseFFN, ops: dict[str, FloatArray]) -> None:
    matmuls = _matmuls(context, ffn.linears)
    act_bytes = 3 * context.tokens * ffn.width / context.batch.tp * BF16_BYTES
    act = vector_seconds(context.cluster.device, act_bytes)
    ops["E_f"] += matmuls + act
    ops["E_b"] += matmuls + VECTOR_BACKWARD * act
    ops["E_w"] += matmuls
    shard = _shard_seconds(context, ffn.linears)
    ops["shard_E_f"] += shard
    ops["shard_E_b"] += shard
    again = context.batch.recomputes("mlp")
    ops["recompute_E"] += np.where(again, matmuls + act, 0.0)
    ops["recompute_shard"] += np.where(again, shard, 0.0)


def _add_moe(context: LayerContext, moe: MoE, ops: dict[str, FloatArray]) -> None:
    batch, device = context.batch, context.cluster.device
    routed, act, moved = _routed_seconds(context, moe)
    shared = _own_matmuls(context, moe.shared)
    shared_act = vector_seconds(device, 3 * context.own_tokens * moe.shared_width * BF16_BYTES)
    shared_act = shared_act if moe.shared else np.zeros(len(batch))
    ops["E_f"] += routed + act + moved + shared + shared_act
    ops["E_b"] += routed + shared + VECTOR_BACKWARD * (act + shared_act) + moved
    ops["E_w"] += routed + shared
    _add_forwarding(context, moe, ops)
    router = _own_matmuls(context, (moe.router,))
    hidden_bytes = context.own_tokens * context.model.hidden * BF16_BYTES
    choice_bytes = context.own_tokens * moe.experts * ROUTER_BYTES
    permute = vector_seconds(device, hidden_bytes * (1 + moe.top_k) + choice_bytes, kernels=8)
    ops["A_f"] += router + permute
    ops["A_b"] += router + VECTOR_BACKWARD * permute
    ops["A_w"] += router
    skew = context.job.imbalance
    hop = dispatch_seconds(
        context.cluster, moe, context.model.hidden, batch, context.own_tokens, skew
    ).total
    for name in ("D_f", "C_f", "D_b", "C_b"):
        ops[name] += hop
    whole = batch.recomputes("moe")
    again = np.where(batch.recomputes("moe_act"), act, 0.0)
    again += np.where(batch.recomputes("shared_experts"), shared + shared_act, 0.0)
    ops["recompute_A"] += np.where(whole, router + permute, 0.0)
    ops["recompute_E"] += np.where(whole, ops["E_f"], again)
    ops["recompute_ep"] += np.where(whole, 2 * hop, 0.0)


def _add_forwarding(context: LayerContext, moe: MoE, ops: dict[str, FloatArray]) -> None:
    """What hierarchical dispatch and combine move through memory on the way, in both passes."""
    rows = forwarded_rows(context.cluster, moe, context.batch, context.own_tokens)
    moved = vector_seconds(context.cluster.device, rows * context.model.hidden * BF16_BYTES)
    hop = np.where(rows > 0, moved, 0.0)
    for name in ("A_f", "E_f", "E_b", "A_b"):
        ops[name] += hop


def _own_matmuls(context: LayerContext, linears: tuple[Linear, ...]) -> FloatArray:
    """Matmuls that are whole on each rank and work on its own tokens."""
    total = np.zeros(len(context.batch))
    for x in linears:
        total += matmul_seconds(
            context.cluster.device, context.job.dtype, context.own_tokens, x.inputs, x.outputs
        )
    return total


def _routed_seconds(context: LayerContext, moe: MoE) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Grouped matmuls, activation, and sorting by expert there and back, of one rank."""
    batch, device = context.batch, context.cluster.device
    received = context.received(moe)
    local = moe.experts / batch.ep
    matmuls = np.zeros(len(batch))
    for x in moe.expert:
        inputs = x.inputs / (batch.etp if x.shard == "row" else 1)
        outputs = x.outputs / (batch.etp if x.shard == "column" else 1)
        matmuls += grouped_matmul_seconds(
            device, context.job.dtype, local, received / local, inputs, outputs
        )
    act = vector_seconds(device, 3 * received * moe.expert_width / batch.etp * BF16_BYTES)
    row = context.model.hidden * BF16_BYTES
    sort = np.where(batch.ep > 1, 4.0, 0.0) * received * row
    unpermute = context.own_tokens * (moe.top_k + 1) * row
    return matmuls, act, vector_seconds(device, sort + unpermute, kernels=4)


def head_seconds(context: LayerContext) -> dict[str, FloatArray]:
    """Output head and cross-entropy, cut by TP over the vocabulary, by sub-operation.

    The loss reads and writes the logits in fp32. Each pass gathers the tokens or scatters their
    gradient; the second gather of backward runs beside the input gradient.
    """
    model, device = context.model, context.cluster.device
    tp = context.batch.tp
    matmul = matmul_seconds(device, "bf16", context.tokens, model.hidden, model.vocab / tp)
    loss = vector_seconds(device, context.tokens * model.vocab / tp * LOSS_BYTES, kernels=6)
    gather = _hidden_gather_seconds(context)
    return {
        "A_f": matmul + loss,
        "A_b": matmul,
        "A_w": matmul,
        "shard_A_f": gather,
        "shard_A_b": gather,
    }


def embedding_seconds(context: LayerContext) -> dict[str, FloatArray]:
    """Look-up and its reduce-scatter over TP, and the same backwards, by sub-operation."""
    row_bytes = context.tokens * context.model.hidden * BF16_BYTES
    look_up = vector_seconds(context.cluster.device, 2 * row_bytes)
    scatter = _hidden_gather_seconds(context)
    return {"A_f": look_up, "A_w": look_up, "shard_A_f": scatter, "shard_A_b": scatter}


def _hidden_gather_seconds(context: LayerContext) -> FloatArray:
    """All-gather of a micro-batch's hidden states over TP, or their reduce-scatter."""
    total_bytes = context.tokens * context.model.hidden * BF16_BYTES
    tp = context.batch.tp
    return all_gather_seconds(context.cluster, total_bytes, tp, np.ones_like(tp))


def projection_seconds(context: LayerContext, projection: Linear) -> FloatArray:
    """An MTP module's projection ``2D -> D`` and its three norms, on the rank's own tokens."""
    row = context.own_tokens * context.model.hidden * BF16_BYTES
    norms = vector_seconds(context.cluster.device, 6 * row, kernels=3)
    return _own_matmuls(context, (projection,)) + norms
