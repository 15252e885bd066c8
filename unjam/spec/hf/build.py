"""From layers to a `ModelSpec`: what every family ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unjam.spec.hf.fields import MOST_LAYERS, Fields
from unjam.spec.hf.parts import MTP_LAYERS
from unjam.spec.model import Attention, DenseFFN, Layer, Linear, ModelSpec, MoE, MTPLayer


def layer(
    hidden: int, attention: Attention | None, ffn: DenseFFN | MoE | None, *, norms: int = 2
) -> Layer:
    """A layer with `norms` RMS norms of width D."""
    return Layer(attention, ffn, norms, norms * hidden)


def build_model(
    f: Fields,
    name: str,
    layers: Sequence[Layer],
    *,
    tied: bool | None = None,
    mtp_layer: Layer | None = None,
    other_params: int = 0,
) -> ModelSpec:
    """Assemble the model.

    Args:
        f: the configuration.
        name: what the user called the model.
        layers: decoder layers.
        tied: what published configurations of the family mean by leaving out
            ``tie_word_embeddings``; None = it must be there.
        mtp_layer: decoder layer of a multi-token-prediction module; None = like the last layer.
        other_params: parameters outside layers besides the final norm.
    """
    hidden = f.integer("hidden_size")
    modules = f.optional(*MTP_LAYERS) * f.optional("mtp_transformer_layers", default=1, least=1)
    if modules > MOST_LAYERS:
        raise f.error(f.find(*MTP_LAYERS)[0], f"{modules} MTP layers: more than {MOST_LAYERS}")
    block = mtp_layer or layers[-1]
    projection = Linear("projection", 2 * hidden, hidden)
    mtp = MTPLayer(block, projection, 3 * hidden)
    longest = f.optional("max_position_embeddings") or None
    return ModelSpec(
        name=name,
        family=str(f.config.get("model_type")),
        hidden=hidden,
        vocab=f.integer("vocab_size"),
        layers=tuple(layers),
        mtp=(mtp,) * modules,
        tied=f.flag("tie_word_embeddings", absent=tied),
        other_params=hidden + other_params,
        max_seq_len=longest,
    )


def two_norms(block: Layer, hidden: int) -> Layer:
    """The layer without sandwich norms."""
    return replace(block, norms=2, norm_params=2 * hidden)
