"""Parts that families share: attention and feed-forward weights from their widths."""

from __future__ import annotations

from dataclasses import replace

from unjam.spec.hf.fields import Fields
from unjam.spec.model import Attention, DenseFFN, Linear, MoE

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts",
           "num_routed_experts")  # fmt: skip
TOP_K = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")
EXPERT_WIDTH = ("moe_intermediate_size", "intermediate_size")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules",
              "num_mtp_layers")  # fmt: skip


def grouped_attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    qk_dim: int,
    v_dim: int,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    gated: bool = False,
    window: int | None = None,
    other_params: int = 0,
) -> Attention:
    """Multi-head, grouped-query or multi-query attention.

    Args:
        hidden: D.
        heads: query heads.
        kv_heads: key/value heads.
        qk_dim: width of a query or key head.
        v_dim: width of a value head.
        qkv_bias: biases of the three input projections.
        out_bias: bias of the output projection.
        gated: the query projection also yields a gate for the output.
        window: sliding window; None = full.
        other_params: norms of queries and keys, sinks.
    """
    q_width = heads * qk_dim * (2 if gated else 1)
    linears = (
        Linear("q", hidden, q_width, "column", qkv_bias),
        Linear("k", hidden, kv_heads * qk_dim, "column", qkv_bias, kv_heads),
        Linear("v", hidden, kv_heads * v_dim, "column", qkv_bias, kv_heads),
        Linear("out", heads * v_dim, hidden, "row", out_bias),
    )
    return Attention(
        "gqa", linears, heads, kv_heads, qk_dim, v_dim, window, other_params=other_params
    )


def latent_attention(f: Fields, hidden: int, *, bias: bool = False) -> Attention:
    """Multi-head latent attention of DeepSeek-V2 [2024]; openPangu has its own spellings."""
    heads = f.integer("num_attention_heads")
    rope = f.integer("qk_rope_head_dim", "attention_qk_rope_dim")
    nope = f.integer("qk_nope_head_dim", "attention_qk_dim")
    v_dim = f.integer("v_head_dim", "attention_v_dim")
    kv_rank = f.integer("kv_lora_rank", "attention_kv_lora_dim")
    # DeepSeek-V2-Lite states q_lora_rank: null, which means full-rank queries.
    names = ("q_lora_rank", "attention_q_lora_dim")
    q_rank = f.optional(*names, least=1)
    if not q_rank and not any(x in f.config for x in names):
        raise f.error("q_lora_rank", "is missing (null for full-rank queries)")
    kv_a = Linear("kv_a", hidden, kv_rank + rope, "replicated", bias)
    kv_b = Linear("kv_b", kv_rank, heads * (nope + v_dim), "column")
    out = Linear("out", heads * v_dim, hidden, "row", bias)
    query: tuple[Linear, ...] = (Linear("q", hidden, heads * (nope + rope), "column"),)
    if q_rank:
        query = (
            Linear("q_a", hidden, q_rank, "replicated", bias),
            Linear("q_b", q_rank, heads * (nope + rope), "column"),
        )
    linears = (*query, kv_a, kv_b, out)
    norms = q_rank + kv_rank
    return Attention("mla", linears, heads, heads, nope + rope, v_dim, other_params=norms)


def with_indexer(f: Fields, attention: Attention, hidden: int) -> Attention:
    """Add DeepSeek sparse attention's indexer, which picks the keys of each query [V3.2, 2025]."""
    heads, width = f.integer("index_n_heads"), f.integer("index_head_dim")
    rank = f.integer("q_lora_rank")
    indexer = (
        Linear("index_q", rank, heads * width),
        Linear("index_k", hidden, width),
        Linear("index_weights", hidden, heads),
    )
    return replace(
        attention,
        linears=attention.linears + indexer,
        top_keys=f.integer("index_topk"),
        index_heads=heads,
        index_head_dim=width,
        other_params=attention.other_params + 2 * width,  # a LayerNorm with bias on the keys
    )


def gated_mlp(hidden: int, width: int, *, bias: bool = False) -> tuple[Linear, ...]:
    """SwiGLU weights: gate and up fused, then down."""
    return (
        Linear("gate_up", hidden, 2 * width, "column", bias),
        Linear("down", width, hidden, "row", bias),
    )


def dense_ffn(hidden: int, width: int, *, bias: bool = False) -> DenseFFN:
    """A dense SwiGLU layer."""
    return DenseFFN(gated_mlp(hidden, width, bias=bias), width)


def routed_experts(
    f: Fields,
    hidden: int,
    width: int,
    *,
    top_k: int | None = None,
    shared_width: int = 0,
    expert_bias: bool = False,
    router_bias: bool = False,
    other_params: int = 0,
) -> MoE:
    """SwiGLU experts of `width`, and shared experts of `shared_width` together.

    Group-limited routing counts when the configuration states more than one group.
    """
    experts = f.integer(*EXPERTS)
    k = f.integer(*TOP_K) if top_k is None else top_k
    if k > experts:
        raise f.error(f.find(*TOP_K)[0], f"{k}: more than the {experts} routed experts")
    groups = f.optional("n_group", default=1, least=1)
    top_groups = f.optional("topk_group", default=groups, least=1)
    if experts % groups:
        raise f.error("n_group", f"{groups}: does not divide the {experts} routed experts")
    if top_groups > groups:
        raise f.error("topk_group", f"{top_groups}: more than the {groups} groups")
    if k > experts // groups * top_groups:
        within = f"{experts // groups * top_groups} experts of the chosen groups"
        raise f.error("topk_group", f"{top_groups}: top-{k} needs more than the {within}")
    return MoE(
        experts=experts,
        top_k=k,
        expert=gated_mlp(hidden, width, bias=expert_bias),
        expert_width=width,
        router=Linear("router", hidden, experts, "replicated", router_bias),
        groups=groups,
        top_groups=top_groups,
        shared=gated_mlp(hidden, shared_width) if shared_width else (),
        shared_width=shared_width,
        other_params=other_params,
    )
