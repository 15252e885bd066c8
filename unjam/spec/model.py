"""What is trained: one `ModelSpec` with a per-layer list that everything downstream reads.

Shape letters: T tokens, D hidden, E experts, K top-k, L layers, S sequence.

A model is described by its weight matrices. Parameters, matmul FLOPs, tensor-parallel shards and
saved activations all follow from the same list of `Linear`, so none of them is described twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Shard = Literal["column", "row", "replicated"]
AttentionKind = Literal["gqa", "mla", "linear", "mamba"]


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix ``[inputs, outputs]`` applied to every token.

    Attributes:
        name: role within its module, e.g. ``"q_a"``, ``"gate_up"``, ``"out"``.
        inputs: width of the input.
        outputs: width of the output.
        shard: how tensor parallelism cuts it: ``column`` (outputs), ``row`` (inputs), or not.
        bias: whether it has a bias of ``outputs`` values.
        most_shards: the most parts that it can be cut into (key/value heads); 0 = any number.
    """

    name: str
    inputs: int
    outputs: int
    shard: Shard = "replicated"
    bias: bool = False
    most_shards: int = 0

    @property
    def params(self) -> int:
        """Number of parameters, bias included."""
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Attention:
    """The token mixer of one layer.

    Attributes:
        kind: ``gqa`` (also MHA, MQA), ``mla``, ``linear`` (delta rule, lightning) or ``mamba``.
        linears: the weight matrices, in order of use.
        heads: query heads.
        kv_heads: key/value heads.
        qk_head_dim: width of a query or key head, rotary part included.
        v_head_dim: width of a value head.
        window: the most keys near the query that it attends to; None = all earlier tokens.
        top_keys: sparse attention: the most keys a query attends to; None = no selection.
        compress: keys beyond the window are pooled by this ratio before attention; 0 = not pooled.
        index_heads: heads of a sparse-attention indexer, which scores every earlier key.
        index_head_dim: width of an indexer head.
        state_flops: forward FLOPs per token of a recurrent mixer, in place of attention over keys.
        other_params: norms, sinks, convolutions, decay: parameters of no `Linear`; replicated.
    """

    kind: AttentionKind
    linears: tuple[Linear, ...]
    heads: int
    kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    window: int | None = None
    top_keys: int | None = None
    compress: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    state_flops: int = 0
    other_params: int = 0

    @property
    def params(self) -> int:
        """Number of parameters."""
        return sum(x.params for x in self.linears) + self.other_params


@dataclass(frozen=True, slots=True)
class DenseFFN:
    """A feed-forward network that every token passes.

    Attributes:
        linears: the weight matrices, in order of use (``gate_up`` fused, then ``down``).
        width: intermediate width, for activation memory.
    """

    linears: tuple[Linear, ...]
    width: int

    @property
    def params(self) -> int:
        """Number of parameters."""
        return sum(x.params for x in self.linears)


@dataclass(frozen=True, slots=True)
class MoE:
    """Routed experts, and shared experts beside them.

    Attributes:
        experts: routed experts E.
        top_k: experts per token K.
        expert: the weight matrices of ONE routed expert.
        expert_width: intermediate width of one routed expert.
        router: the router's matrix ``[D, E]``.
        groups: groups of experts for group-limited routing (``n_group``); 1 = not limited.
        top_groups: groups that a token may use (``topk_group``).
        shared: the weight matrices of all shared experts together, as one wide FFN; () = none.
        shared_width: intermediate width of all shared experts together; 0 = none.
        other_params: parameters of no `Linear` (router bias, shared-expert gate); replicated.
    """

    experts: int
    top_k: int
    expert: tuple[Linear, ...]
    expert_width: int
    router: Linear
    groups: int = 1
    top_groups: int = 1
    shared: tuple[Linear, ...] = ()
    shared_width: int = 0
    other_params: int = 0

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert."""
        return sum(x.params for x in self.expert)

    @property
    def routed_params(self) -> int:
        """Parameters of all routed experts."""
        return self.experts * self.expert_params

    @property
    def params(self) -> int:
        """Number of parameters: routed, shared, router, others."""
        shared = sum(x.params for x in self.shared)
        return self.routed_params + shared + self.router.params + self.other_params


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: a token mixer and a feed-forward part, either of which may be absent.

    Attributes:
        attention: the token mixer, or None (Nemotron's single-block layers).
        ffn: dense or MoE, or None.
        norms: how many norms of width D the layer applies (4 = sandwich).
        norm_params: their parameters together.
        other_params: parameters of neither mixer, FFN nor norm (e.g. hyper-connections).
    """

    attention: Attention | None
    ffn: DenseFFN | MoE | None
    norms: int
    norm_params: int
    other_params: int = 0

    @property
    def params(self) -> int:
        """Number of parameters."""
        parts = (self.attention, self.ffn)
        return sum(x.params for x in parts if x) + self.norm_params + self.other_params

    @property
    def moe(self) -> MoE | None:
        """The FFN if it is a MoE, else None."""
        return self.ffn if isinstance(self.ffn, MoE) else None

    @property
    def routed_params(self) -> int:
        """Parameters of the routed experts; 0 in a dense layer."""
        return self.moe.routed_params if self.moe else 0


@dataclass(frozen=True, slots=True)
class MTPLayer:
    """A multi-token-prediction module: one decoder layer behind a projection of ``2D -> D``.

    Embedding and output head are shared with the main model and not counted here.
    """

    layer: Layer
    projection: Linear
    norm_params: int

    @property
    def params(self) -> int:
        """Number of parameters, without the shared embedding and head."""
        return self.layer.params + self.projection.params + self.norm_params


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model.

    Attributes:
        name: what the user called it.
        family: ``model_type`` of the configuration.
        hidden: width D.
        vocab: vocabulary size.
        layers: the L decoder layers in order.
        mtp: multi-token-prediction modules in order; () = none.
        tied: whether the output head shares the embedding's weights.
        other_params: parameters outside the layers, embedding and head (final norm, ...).
        max_seq_len: longest sequence that the configuration states; None = not stated.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    mtp: tuple[MTPLayer, ...]
    tied: bool
    other_params: int
    max_seq_len: int | None = None

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab * self.hidden

    @property
    def recomputable(self) -> frozenset[str]:
        """Modules of `unjam.spec.strategy.RECOMPUTE` that the model has."""
        found = {"layernorm", "full"}
        for layer in self.layers:
            if layer.attention and layer.attention.kind == "mla":
                found.add("mla_up_proj")
            if isinstance(layer.ffn, DenseFFN):
                found.add("mlp")
            if layer.moe:
                found |= {"moe", "moe_act"} | ({"shared_experts"} if layer.moe.shared else set())
        return frozenset(found)

    @property
    def head_params(self) -> int:
        """Parameters that the output head adds; 0 when tied."""
        return 0 if self.tied else self.vocab * self.hidden

    @cached_property
    def params(self) -> ParameterCounts:
        """Exact parameter counts."""
        return count_parameters(self)

    @cached_property
    def moe(self) -> MoE | None:
        """The first MoE of the model, which stands for all where they are alike; None if dense."""
        return next((x.moe for x in self.layers if x.moe), None)


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameter counts in the conventions in use; MTP weights are never part of the totals.

    "Activated" is published in three conventions: with embedding and head (Qwen, Mixtral), without
    the input embedding (gpt-oss), without embedding and head (MiniMax). A tied embedding counts
    as the head, so leaving out the input embedding does not lower the count.
    """

    total_params: int
    routed_expert_params: int
    activated_params: int
    activated_excl_input_embedding: int
    activated_excl_embedding_and_lm_head: int
    mtp_params_per_layer: int


def count_parameters(model: ModelSpec) -> ParameterCounts:
    """Count parameters exactly.

    ``activated = total - sum over MoE layers of (E - K) * params of one expert``.
    """
    routed = sum(x.routed_params for x in model.layers)
    body = sum(x.params for x in model.layers) + model.other_params
    total = body + model.embedding_params + model.head_params
    idle = sum((x.moe.experts - x.moe.top_k) * x.moe.expert_params for x in model.layers if x.moe)
    activated = total - idle
    inputs_only = 0 if model.tied else model.embedding_params
    return ParameterCounts(
        total_params=total,
        routed_expert_params=routed,
        activated_params=activated,
        activated_excl_input_embedding=activated - inputs_only,
        activated_excl_embedding_and_lm_head=body - idle,
        mtp_params_per_layer=model.mtp[0].params if model.mtp else 0,
    )
