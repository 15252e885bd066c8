"""Families that mix kinds of attention: windows, linear attention, Mamba."""

from __future__ import annotations

from unjam.spec.hf.build import build_model, layer
from unjam.spec.hf.deepseek import dense_then_moe
from unjam.spec.hf.fields import Fields
from unjam.spec.hf.gqa import attention_of, head_dim, qwen_ffns
from unjam.spec.hf.parts import grouped_attention, routed_experts
from unjam.spec.model import Attention, DenseFFN, Layer, Linear, ModelSpec, MoE


def mimo(f: Fields, name: str) -> ModelSpec:
    """MiMo-V2: full attention in some layers, windows with sinks and their own heads in others."""
    hidden, count = f.integer("hidden_size"), f.layers()
    pattern = f.choices("hybrid_layer_pattern", count, (0, 1))  # full attention, window
    ffns = dense_then_moe(f, hidden, count)
    bias = f.flag("attention_bias", absent=False)
    layers = []
    for kind, ffn in zip(pattern, ffns, strict=True):
        swa = "swa_" if kind else ""
        heads = f.integer(f"{swa}num_attention_heads")
        sinks = f.flag(f"add_{'swa' if kind else 'full'}_attention_sink_bias")
        attention = grouped_attention(
            hidden,
            heads,
            f.integer(f"{swa}num_key_value_heads"),
            f.integer(f"{swa}head_dim"),
            f.integer(f"{swa}v_head_dim"),
            qkv_bias=bias,
            window=f.integer("sliding_window") if kind else None,
            other_params=heads if sinks else 0,
        )
        layers.append(layer(hidden, attention, ffn))
    return build_model(f, name, layers)


def minimax(f: Fields, name: str) -> ModelSpec:
    """MiniMax-Text-01 and M1: lightning attention in seven of eight layers."""
    hidden, count = f.integer("hidden_size"), f.layers()
    if f.has("layer_types"):
        known = ("full_attention", "linear_attention")
        kinds = [x == "full_attention" for x in f.choices("layer_types", count, known)]
    else:
        kinds = [bool(x) for x in f.choices("attn_type_list", count, (0, 1))]
    moe = routed_experts(f, hidden, f.integer("intermediate_size"))
    full, linear = attention_of(f, hidden), _lightning(f, hidden)
    return build_model(f, name, [layer(hidden, full if x else linear, moe) for x in kinds])


def _lightning(f: Fields, hidden: int) -> Attention:
    """Lightning attention: a d x d state per head, updated and read once per token."""
    heads, width = f.integer("num_attention_heads"), head_dim(f, hidden)
    inner = heads * width
    linears = (
        Linear("qkv", hidden, 3 * inner, "column"),
        Linear("gate", hidden, inner, "column"),
        Linear("out", inner, hidden, "row"),
    )
    state = 4 * heads * width * width  # k v^T into the state, q times the state
    return Attention(
        "linear", linears, heads, heads, width, width, state_flops=state, other_params=inner
    )


def qwen_next(f: Fields, name: str) -> ModelSpec:
    """Qwen3-Next and Qwen3.5: gated delta rule in three of four layers, gated full attention."""
    hidden, count = f.integer("hidden_size"), f.layers()
    if f.has("layer_types"):
        kinds = f.choices("layer_types", count, ("full_attention", "linear_attention"))
    else:
        every = f.integer("full_attention_interval")
        kinds = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    heads, width = f.integer("num_attention_heads"), head_dim(f, hidden)
    full = grouped_attention(
        hidden, heads, f.integer("num_key_value_heads"), width, width,
        gated=f.flag("attn_output_gate", absent=True), other_params=2 * width,
        qkv_bias=f.flag("attention_bias", absent=False),
        out_bias=f.flag("attention_bias", absent=False),
    )  # fmt: skip
    mixers = {"full_attention": full, "linear_attention": _gated_delta(f, hidden)}
    layers = []
    for kind, ffn in zip(kinds, qwen_ffns(f, hidden, count), strict=True):
        layers.append(layer(hidden, mixers[kind], ffn))
    # An MTP module's layer attends to all tokens; published configurations state untied.
    mtp = layer(hidden, full, layers[-1].ffn)
    return build_model(f, name, layers, mtp_layer=mtp, tied=False)


def _gated_delta(f: Fields, hidden: int) -> Attention:
    """Gated delta rule [Yang et al. 2024]: decay, erase, write and read a d_k x d_v state."""
    key_heads, value_heads = f.integer("linear_num_key_heads"), f.integer("linear_num_value_heads")
    key, value = f.integer("linear_key_head_dim"), f.integer("linear_value_head_dim")
    kernel = f.integer("linear_conv_kernel_dim")
    keys, values = key_heads * key, value_heads * value
    linears = (
        Linear("qkv", hidden, 2 * keys + values, "column"),
        Linear("z", hidden, values, "column"),
        Linear("ba", hidden, 2 * value_heads, "column"),
        Linear("out", values, hidden, "row"),
    )
    others = (2 * keys + values) * kernel + 2 * value_heads + value
    state = 6 * value_heads * key * value
    return Attention(
        "linear", linears, value_heads, key_heads, key, value,
        state_flops=state, other_params=others,
    )  # fmt: skip


def nemotron_h(f: Fields, name: str) -> ModelSpec:
    """Nemotron-H: one block per layer: M Mamba-2, * attention, E MoE, - dense FFN."""
    hidden, count = f.integer("hidden_size"), f.layers()
    pattern = f.config.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        raise f.error("hybrid_override_pattern", "is missing")
    if len(pattern) != count:
        raise f.error("hybrid_override_pattern", f"has {len(pattern)} blocks for {count} layers")
    makers = {"M": _mamba_block, "*": _attention_block, "E": _moe_block, "-": _dense_block}
    blocks = {}
    for kind in dict.fromkeys(pattern):
        if kind not in makers:
            known = ", ".join(makers)
            raise f.error("hybrid_override_pattern", f"{kind!r} is unknown; known: {known}")
        blocks[kind] = makers[kind](f, hidden)
    return build_model(f, name, [blocks[x] for x in pattern])


def _attention_block(f: Fields, hidden: int) -> Layer:
    bias = f.flag("attention_bias", absent=False)
    return layer(hidden, attention_of(f, hidden, qkv_bias=bias, out_bias=bias), None, norms=1)


def _relu_mlp(hidden: int, width: int) -> tuple[Linear, ...]:
    # Squared ReLU has no gate.
    return (Linear("up", hidden, width, "column"), Linear("down", width, hidden, "row"))


def _dense_block(f: Fields, hidden: int) -> Layer:
    width = f.integer("intermediate_size")
    return layer(hidden, None, DenseFFN(_relu_mlp(hidden, width), width), norms=1)


def _moe_block(f: Fields, hidden: int) -> Layer:
    width = f.integer("moe_intermediate_size")
    shared = f.optional("moe_shared_expert_intermediate_size") * f.optional("n_shared_experts")
    gated = routed_experts(f, hidden, width)
    moe = MoE(
        experts=gated.experts,
        top_k=gated.top_k,
        expert=_relu_mlp(hidden, width),
        expert_width=width,
        router=gated.router,
        groups=gated.groups,
        top_groups=gated.top_groups,
        shared=_relu_mlp(hidden, shared) if shared else (),
        shared_width=shared,
    )
    return layer(hidden, None, moe, norms=1)


def _mamba_block(f: Fields, hidden: int) -> Layer:
    """Mamba-2 [Dao and Gu 2024]: a d_head x d_state state per head, written and read per token."""
    heads, width = f.integer("mamba_num_heads"), f.integer("mamba_head_dim")
    groups, state = f.integer("n_groups"), f.integer("ssm_state_size")
    kernel = f.integer("conv_kernel")
    inner = heads * width
    mixed = inner + 2 * groups * state
    bias = f.flag("mamba_proj_bias", absent=False)
    linears = (
        Linear("in", hidden, inner + mixed + heads, "column", bias),
        Linear("out", inner, hidden, "row", bias),
    )
    convolution = mixed * kernel + (mixed if f.flag("use_conv_bias", absent=True) else 0)
    mixer = Attention(
        "mamba", linears, heads, heads, width, width,
        state_flops=6 * heads * width * state,
        other_params=convolution + 3 * heads + inner,
    )  # fmt: skip
    return layer(hidden, mixer, None, norms=1)
