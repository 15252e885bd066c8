"""Families with grouped-query attention in every layer: dense and MoE."""

from __future__ import annotations

from dataclasses import replace

from unjam.spec.hf.build import build_model, layer
from unjam.spec.hf.deepseek import dense_then_moe
from unjam.spec.hf.fields import Fields
from unjam.spec.hf.parts import (
    EXPERT_WIDTH,
    SHARED,
    TOP_K,
    dense_ffn,
    grouped_attention,
    routed_experts,
)
from unjam.spec.model import Attention, DenseFFN, ModelSpec, MoE

# Families whose published configurations leave head_dim out: it is D over the heads there. In the
# others it is a number of its own.
_DERIVED_HEAD_DIM = {"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "olmoe", "ernie4_5_moe"}


def head_dim(f: Fields, hidden: int) -> int:
    """Width of a head: ``head_dim``, or D over the heads in the families that define it so."""
    heads = f.integer("num_attention_heads")
    if f.has("head_dim") or f.config.get("model_type") not in _DERIVED_HEAD_DIM:
        return f.integer("head_dim")
    if hidden % heads:
        raise f.error("head_dim", f"is missing and hidden_size {hidden} does not divide by {heads}")
    return hidden // heads


def attention_of(
    f: Fields,
    hidden: int,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    norm: str = "none",
    window: int | None = None,
) -> Attention:
    """Attention from the usual fields; `norm` of queries and keys: none, head, or full width."""
    heads, width = f.integer("num_attention_heads"), head_dim(f, hidden)
    kv_heads = f.integer("num_key_value_heads")
    if heads % kv_heads:
        raise f.error("num_key_value_heads", f"{kv_heads}: does not divide the {heads} heads")
    norms = {"none": 0, "head": 2 * width, "full": (heads + kv_heads) * width}[norm]
    return grouped_attention(
        hidden, heads, kv_heads, width, width,
        qkv_bias=qkv_bias, out_bias=out_bias, window=window, other_params=norms,
    )  # fmt: skip


def llama(f: Fields, name: str) -> ModelSpec:
    """Dense decoders: Llama, Mistral, Qwen2 (biased queries, keys, values), Qwen3 (normed)."""
    hidden, count = f.integer("hidden_size"), f.layers()
    family = f.config["model_type"]
    bias = f.flag("attention_bias", absent=False)
    attention = attention_of(
        f, hidden,
        qkv_bias=bias or family == "qwen2",
        out_bias=bias and family == "llama",
        norm="head" if family == "qwen3" else "none",
    )  # fmt: skip
    plain = dense_ffn(hidden, f.integer("intermediate_size"), bias=f.flag("mlp_bias", absent=False))
    return build_model(f, name, [layer(hidden, attention, plain)] * count)


def mixtral(f: Fields, name: str) -> ModelSpec:
    """Mixtral: every layer a MoE of experts of ``intermediate_size``."""
    hidden, count = f.integer("hidden_size"), f.layers()
    window = f.optional("sliding_window", least=1) or None
    moe = routed_experts(f, hidden, f.integer("intermediate_size"))
    block = layer(hidden, attention_of(f, hidden, window=window), moe)
    # Published Mixtral configurations state false or leave the field out.
    return build_model(f, name, [block] * count, tied=False)


def olmoe(f: Fields, name: str) -> ModelSpec:
    """OLMoE: Mixtral with queries and keys normed over their full width."""
    hidden, count = f.integer("hidden_size"), f.layers()
    moe = routed_experts(f, hidden, f.integer("intermediate_size"))
    block = layer(hidden, attention_of(f, hidden, norm="full"), moe)
    return build_model(f, name, [block] * count)


def minimax_m2(f: Fields, name: str) -> ModelSpec:
    """MiniMax-M2: the same; its MTP modules are stated and not in the totals."""
    hidden, count = f.integer("hidden_size"), f.layers()
    norm = "full" if f.flag("use_qk_norm", absent=True) else "none"
    moe = routed_experts(f, hidden, f.integer("intermediate_size"))
    block = layer(hidden, attention_of(f, hidden, norm=norm), moe)
    return build_model(f, name, [block] * count)


def qwen_moe(f: Fields, name: str) -> ModelSpec:
    """Qwen2-MoE (biased attention, gated shared expert) and Qwen3-MoE (normed queries and keys)."""
    hidden, count = f.integer("hidden_size"), f.layers()
    second = f.config["model_type"] == "qwen2_moe"
    bias = f.flag("attention_bias", absent=False)
    attention = attention_of(
        f, hidden, qkv_bias=bias or second, out_bias=bias, norm="none" if second else "head"
    )
    ffns = qwen_ffns(f, hidden, count)
    return build_model(f, name, [layer(hidden, attention, x) for x in ffns])


def qwen_ffns(f: Fields, hidden: int, count: int) -> list[DenseFFN | MoE]:
    """A MoE every ``decoder_sparse_step`` layers, but in ``mlp_only_layers``."""
    every = f.optional("decoder_sparse_step", default=1, least=1)
    only = f.layer_numbers("mlp_only_layers", count)
    sparse = [i not in only and (i + 1) % every == 0 for i in range(count)]
    shared = f.optional("shared_expert_intermediate_size")
    gate = hidden if shared else 0
    moe = routed_experts(
        f, hidden, f.integer("moe_intermediate_size"), shared_width=shared, other_params=gate
    )
    if all(sparse):
        return [moe] * count
    plain = dense_ffn(hidden, f.integer("intermediate_size"))
    return [moe if x else plain for x in sparse]


def glm4_moe(f: Fields, name: str) -> ModelSpec:
    """GLM-4.5 and dots.llm1: DeepSeek's layers with grouped-query attention."""
    hidden, count = f.integer("hidden_size"), f.layers()
    # dots.llm1 always norms queries and keys; GLM says so.
    normed = f.flag("use_qk_norm", absent=f.config["model_type"] == "dots1")
    attention = attention_of(
        f, hidden, qkv_bias=f.flag("attention_bias"), norm="head" if normed else "none"
    )
    ffns = dense_then_moe(f, hidden, count)
    return build_model(f, name, [layer(hidden, attention, x) for x in ffns])


def gpt_oss(f: Fields, name: str) -> ModelSpec:
    """gpt-oss: biases everywhere, attention sinks, windows in every second layer."""
    hidden, count = f.integer("hidden_size"), f.layers()
    heads, width = f.integer("num_attention_heads"), head_dim(f, hidden)
    kinds = f.choices("layer_types", count, ("full_attention", "sliding_attention"))
    bias = f.flag("attention_bias", absent=True)
    moe = routed_experts(
        f, hidden, f.integer("intermediate_size"), expert_bias=True, router_bias=True
    )
    layers = []
    for kind in kinds:
        window = f.integer("sliding_window") if kind == "sliding_attention" else None
        attention = grouped_attention(
            hidden, heads, f.integer("num_key_value_heads"), width, width,
            qkv_bias=bias, out_bias=bias, window=window, other_params=heads,
        )  # fmt: skip
        layers.append(layer(hidden, attention, moe))
    return build_model(f, name, layers)


def llama4(f: Fields, name: str) -> ModelSpec:
    """Llama 4: a MoE every ``interleave_moe_layer_step`` layers, always one shared expert."""
    hidden, count = f.integer("hidden_size"), f.layers()
    every = f.integer("interleave_moe_layer_step")
    width = f.integer("intermediate_size")
    attention = attention_of(f, hidden)
    moe = routed_experts(f, hidden, width, shared_width=width)
    ffns: list[DenseFFN | MoE] = [moe] * count
    if every > 1:
        plain = dense_ffn(hidden, f.integer("intermediate_size_mlp"))
        ffns = [moe if (i + 1) % every == 0 else plain for i in range(count)]
    # The text part of published Llama 4 configurations leaves tie_word_embeddings out: untied.
    return build_model(f, name, [layer(hidden, attention, x) for x in ffns], tied=False)


def hunyuan(f: Fields, name: str) -> ModelSpec:
    """Hunyuan-A13B: per-layer lists of widths, top-k and shared experts."""
    hidden, count = f.integer("hidden_size"), f.layers()
    normed = f.flag("use_qk_norm", absent=True)
    attention = attention_of(f, hidden, norm="head" if normed else "none")
    widths = f.per_layer(*EXPERT_WIDTH, count=count)
    shared = f.per_layer(*SHARED[::-1], count=count, least=0)
    top_k = f.per_layer(*TOP_K, count=count)
    layers = []
    for width, n, k in zip(widths, shared, top_k, strict=True):
        moe = routed_experts(f, hidden, width, top_k=k, shared_width=n * width)
        layers.append(layer(hidden, attention, moe))
    return build_model(f, name, layers)


def ernie(f: Fields, name: str) -> ModelSpec:
    """ERNIE 4.5: MoE layers from start to end index, every so many layers."""
    hidden, count = f.integer("hidden_size"), f.layers()
    bias = f.flag("use_bias", absent=False)
    attention = attention_of(f, hidden, qkv_bias=bias, out_bias=bias)
    first, every = f.integer("moe_layer_start_index", least=0), f.integer("moe_layer_interval")
    last = f.integer("moe_layer_end_index", least=-1)
    last = count - 1 if last == -1 else last
    width = f.integer("moe_intermediate_size")
    moe = routed_experts(f, hidden, width, shared_width=f.optional(*SHARED) * width)
    moe = replace(moe, other_params=moe.experts)  # the score correction is a parameter here
    plain = dense_ffn(hidden, f.integer("intermediate_size"), bias=bias)
    sparse = [first <= i <= last and (i + 1) % every == 0 for i in range(count)]
    return build_model(f, name, [layer(hidden, attention, moe if x else plain) for x in sparse])
