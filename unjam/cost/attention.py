"""FLOPs of attention cores, and the keys that they look at."""

from __future__ import annotations

from unjam.spec.model import Attention, DenseFFN, Layer, Linear, ModelSpec

# Flash attention backward recomputes the scores: 5 matmuls against 2 [Dao 2023, FlashAttention-2].
BACKWARD_OVER_FORWARD = 2.5


def mean_keys(seq_len: int, limit: int | None) -> float:
    """Keys that a causal query sees on average when it sees at most the `limit` last ones.

    ``(S+1)/2`` without a limit, else ``w - w(w-1)/(2S)``.
    """
    if limit is None or limit >= seq_len:
        return (seq_len + 1) / 2
    return limit - limit * (limit - 1) / (2 * seq_len)


def core_flops_per_token(attention: Attention, seq_len: int) -> float:
    """Forward FLOPs per token of the attention core, causal: ``2 heads (d_qk + d_v) keys``.

    Sparse attention adds an indexer that scores every earlier key; recurrent mixers state theirs.
    """
    if attention.state_flops:
        return float(attention.state_flops)
    if attention.compress:
        pooled = mean_keys(seq_len, None) / attention.compress
        if attention.top_keys is not None:
            pooled = min(pooled, mean_keys(seq_len, attention.top_keys))
        keys = pooled + mean_keys(seq_len, attention.window)
    else:
        keys = min(mean_keys(seq_len, x) for x in (attention.window, attention.top_keys))
    core = 2.0 * attention.heads * (attention.qk_head_dim + attention.v_head_dim) * keys
    scored = mean_keys(seq_len, None) / max(attention.compress, 1)
    return core + 2.0 * attention.index_heads * attention.index_head_dim * scored


def _linear_flops(linears: tuple[Linear, ...]) -> float:
    return float(sum(2 * x.inputs * x.outputs for x in linears))


def layer_flops_per_token(layer: Layer, seq_len: int) -> float:
    """Forward FLOPs per token of one layer: matmuls that the token passes, and attention."""
    flops = 0.0
    if layer.attention:
        flops += _linear_flops(layer.attention.linears)
        flops += core_flops_per_token(layer.attention, seq_len)
    if layer.moe:
        moe = layer.moe
        flops += moe.top_k * _linear_flops(moe.expert)
        flops += _linear_flops(moe.shared) + _linear_flops((moe.router,))
    elif isinstance(layer.ffn, DenseFFN):
        flops += _linear_flops(layer.ffn.linears)
    return flops


def train_flops_per_token(model: ModelSpec, seq_len: int) -> float:
    """Model FLOPs per token of a training step: three times the forward pass.

    Causal attention is counted once (halved against the full square), recomputation is not
    counted, each MTP module is counted with its pass through the shared output head.
    """
    head = 2.0 * model.hidden * model.vocab
    forward = sum(layer_flops_per_token(x, seq_len) for x in model.layers) + head
    for mtp in model.mtp:
        forward += layer_flops_per_token(mtp.layer, seq_len) + head
        forward += _linear_flops((mtp.projection,))
    return 3.0 * forward
