"""DeepSeek-V4: one key/value head whose old keys are pooled, and hyper-connections.

Layers with ratio 4 pool lightly and pick pooled keys with an indexer; those with a large ratio pool
heavily and attend to all of them; ratio 0 is the window alone. Weights as in transformers 5.24.
"""

from __future__ import annotations

from unjam.spec.hf.build import build_model
from unjam.spec.hf.fields import Fields
from unjam.spec.hf.parts import SHARED, routed_experts
from unjam.spec.model import Attention, Layer, Linear, ModelSpec


def deepseek_v4(f: Fields, name: str) -> ModelSpec:
    """DeepSeek-V4 Flash and Pro."""
    hidden, count = f.integer("hidden_size"), f.layers()
    ratios = f.config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < count:
        raise f.error("compress_ratios", f"must list a ratio for each of the {count} layers")
    width = f.integer("moe_intermediate_size")
    moe = routed_experts(f, hidden, width, shared_width=f.integer(*SHARED, least=0) * width)
    streams = f.integer("hc_mult")
    mixing = 2 * _hyper_connection(streams, hidden)
    layers = [
        Layer(_attention(f, hidden, f.check_integer("compress_ratios", x, 0)), moe, 2,
              2 * hidden, mixing)
        for x in ratios[:count]
    ]  # fmt: skip
    # The head folds the residual streams into one.
    fold = streams * streams * hidden + streams + 1
    return build_model(f, name, layers, other_params=fold)


def _hyper_connection(streams: int, hidden: int) -> int:
    """Parameters that mix `streams` residual streams around one sub-layer."""
    outputs = (2 + streams) * streams
    return outputs * streams * hidden + outputs + 3


def _attention(f: Fields, hidden: int, ratio: int) -> Attention:
    heads, width = f.integer("num_attention_heads"), f.integer("head_dim")
    q_rank, o_rank = f.integer("q_lora_rank"), f.integer("o_lora_rank")
    groups = f.integer("o_groups")
    if heads * width % groups:
        raise f.error("o_groups", f"{groups}: does not divide {heads} heads of {width}")
    linears = [
        Linear("q_a", hidden, q_rank),
        Linear("q_b", q_rank, heads * width, "column"),
        Linear("kv", hidden, width),
        Linear("o_a", heads * width // groups, groups * o_rank, "column"),
        Linear("o_b", groups * o_rank, hidden, "row"),
    ]
    others = heads + q_rank + width  # sinks and the two norms
    index_heads = index_width = 0
    if ratio:
        # Light pooling looks at overlapping blocks and projects twice the width.
        sparse = ratio == 4
        pooled = width * (2 if sparse else 1)
        linears += [Linear("pool_kv", hidden, pooled), Linear("pool_gate", hidden, pooled)]
        others += ratio * pooled + width
        if sparse:
            index_heads, index_width = f.integer("index_n_heads"), f.integer("index_head_dim")
            linears += [
                Linear("index_kv", hidden, 2 * index_width),
                Linear("index_gate", hidden, 2 * index_width),
                Linear("index_q", q_rank, index_heads * index_width),
                Linear("index_weights", hidden, index_heads),
            ]
            others += ratio * 2 * index_width + index_width
    return Attention(
        kind="gqa",
        linears=tuple(linears),
        heads=heads,
        kv_heads=f.integer("num_key_value_heads"),
        qk_head_dim=width,
        v_head_dim=width,
        window=f.integer("sliding_window"),
        top_keys=f.integer("index_topk") if index_heads else None,
        compress=ratio,
        index_heads=index_heads,
        index_head_dim=index_width,
        other_params=others,
    )
