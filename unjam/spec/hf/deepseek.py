"""Families with multi-head latent attention: DeepSeek, Kimi, GLM-5, openPangu."""

from __future__ import annotations

from unjam.spec.hf.build import build_model, layer, two_norms
from unjam.spec.hf.fields import Fields
from unjam.spec.hf.parts import (
    EXPERTS,
    SHARED,
    dense_ffn,
    latent_attention,
    routed_experts,
    with_indexer,
)
from unjam.spec.model import DenseFFN, ModelSpec, MoE


def deepseek(f: Fields, name: str) -> ModelSpec:
    """DeepSeek-V2, V3, V3.2 and the models with their code (Kimi K2, GLM-5, openPangu)."""
    hidden, count = f.integer("hidden_size"), f.layers()
    attention = latent_attention(f, hidden, bias=f.flag("attention_bias", absent=False))
    if f.has("index_topk"):
        attention = with_indexer(f, attention, hidden)
    # openPangu wraps attention and FFN in norms on both sides.
    sandwich = f.config.get("model_type") in {"pangu_ultra_moe", "openpangu_moe", "PanguUltraMoE"}
    norms = 4 if f.flag("sandwich_norm", absent=sandwich) else 2
    layers = [layer(hidden, attention, x, norms=norms) for x in dense_then_moe(f, hidden, count)]
    return build_model(f, name, layers, mtp_layer=two_norms(layers[-1], hidden), tied=None)


def dense_then_moe(f: Fields, hidden: int, count: int) -> list[DenseFFN | MoE]:
    """DeepSeek's layers: the first ones dense, then a MoE every ``moe_layer_freq`` layers."""
    if not f.has(*EXPERTS):
        raise f.error(EXPERTS[0], f"is missing (also spelt {', '.join(EXPERTS[1:])})")
    width = f.integer("moe_intermediate_size")
    pattern = f.config.get("moe_layer_freq", 1)
    if isinstance(pattern, list):
        sparse = [bool(x) for x in f.choices("moe_layer_freq", count, (0, 1))]
    else:
        dense_layers = f.integer("first_k_dense_replace", "num_dense_layers", least=0)
        every = f.optional("moe_layer_freq", default=1, least=1)
        sparse = [i >= dense_layers and i % every == 0 for i in range(count)]
    moe = routed_experts(f, hidden, width, shared_width=f.optional(*SHARED) * width)
    if all(sparse):
        return [moe] * count
    plain = dense_ffn(hidden, f.integer("intermediate_size"))
    return [moe if x else plain for x in sparse]
