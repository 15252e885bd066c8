"""Costs of a model's units (kinds of layers, embedding, head) under a batch of strategies.

Layers that are alike are costed once. A stage is then a sequence of units, and everything about
it is a sum, or a simulation, over their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unjam.cost.batch import FloatArray, IntArray
from unjam.cost.compute import BF16_BYTES
from unjam.cost.layer import (
    SUB_OPERATIONS,
    LayerContext,
    embedding_seconds,
    head_seconds,
    layer_seconds,
    projection_seconds,
)
from unjam.cost.memory import ParameterBuckets, head_bytes, layer_bytes, layer_parameters
from unjam.spec.layout import Layout
from unjam.spec.model import Layer, ModelSpec

EMBEDDING, HEAD, MTP_HEAD = 0, 1, 2
FIRST_LAYER = 3


@dataclass(frozen=True)
class UnitKinds:
    """The distinct units of a model.

    Attributes:
        layers: the distinct layers; unit ``FIRST_LAYER + i`` is ``layers[i]``.
        of_layer: unit of each of the L layers.
        of_mtp: unit of each MTP module.
    """

    layers: tuple[Layer, ...]
    of_layer: tuple[int, ...]
    of_mtp: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of units U."""
        return FIRST_LAYER + len(self.layers) + len(self.of_mtp)


def unit_kinds(model: ModelSpec) -> UnitKinds:
    """Tell a model's distinct units apart; each MTP module is a unit of its own."""
    distinct = tuple(dict.fromkeys(model.layers))
    index = {x: FIRST_LAYER + i for i, x in enumerate(distinct)}
    after = FIRST_LAYER + len(distinct)
    mtp = tuple(range(after, after + len(model.mtp)))
    return UnitKinds(distinct, tuple(index[x] for x in model.layers), mtp)


@dataclass(frozen=True)
class UnitCosts:
    """Costs per unit and strategy.

    Attributes:
        kinds: what the U units are.
        seconds: ``[U, len(SUB_OPERATIONS), N]``.
        kept: bytes that one micro-batch leaves, ``[U, N]``.
        working: bytes held for a moment in backward, ``[U, N]``.
        dense: parameters per rank outside routed experts, ``[U, N]``.
        routed: parameters per rank of routed experts, ``[U, N]``.
    """

    kinds: UnitKinds
    seconds: FloatArray
    kept: FloatArray
    working: FloatArray
    dense: FloatArray
    routed: FloatArray

    def take(self, index: IntArray) -> UnitCosts:
        """Costs of the strategies at `index`."""
        parts = (self.seconds, self.kept, self.working, self.dense, self.routed)
        return UnitCosts(self.kinds, *(x[..., index] for x in parts))


def unit_costs(context: LayerContext) -> UnitCosts:
    """Cost every unit of the model under every strategy of the batch."""
    model, batch = context.model, context.batch
    kinds = unit_kinds(model)
    n = len(batch)
    seconds = np.zeros((kinds.count, len(SUB_OPERATIONS), n))
    kept, working, dense, routed = (np.zeros((kinds.count, n)) for _ in range(4))

    def put(unit: int, layer: Layer) -> None:
        seconds[unit] = layer_seconds(context, layer).matrix
        sizes = layer_bytes(context, layer)
        kept[unit], working[unit] = sizes.kept, sizes.working
        params: ParameterBuckets = layer_parameters(layer, batch)
        dense[unit], routed[unit] = params.dense, params.routed

    for i, layer in enumerate(kinds.layers):
        put(FIRST_LAYER + i, layer)
    row = {x: i for i, x in enumerate(SUB_OPERATIONS)}
    embedding = embedding_seconds(context)
    vocabulary = model.embedding_params / batch.tp
    # MTP modules and a tied head use the embedding; on another pipeline rank they hold a copy.
    copied = np.where(batch.pp > 1, vocabulary, 0.0)
    for unit, mtp in zip(kinds.of_mtp, model.mtp, strict=True):
        put(unit, mtp.layer)
        for name in ("A_f", "A_b", "A_w"):
            seconds[unit, row[name]] += projection_seconds(context, mtp.projection)
        for name, value in embedding.items():
            seconds[unit, row[name]] += value
        dense[unit] += mtp.projection.params + mtp.norm_params + copied
        kept[unit] += context.own_tokens * (2 * model.hidden) * BF16_BYTES
    for name, value in embedding.items():
        seconds[EMBEDDING, row[name]] = value
    head = head_bytes(context)
    for unit in (HEAD, MTP_HEAD):
        for name, value in head_seconds(context).items():
            seconds[unit, row[name]] = value
        kept[unit], working[unit] = head.kept, head.working
    dense[EMBEDDING] = vocabulary
    dense[HEAD] = (copied if model.tied else vocabulary) + model.other_params
    return UnitCosts(kinds, seconds, kept, working, dense, routed)


def stage_units(kinds: UnitKinds, layout: Layout) -> tuple[IntArray, IntArray]:
    """Units of every stage of a layout of tokens E, t, m, L.

    The head passes the main loss and one loss per MTP module, so L stands for ``1 + MTP`` heads.

    Returns:
        ``units`` of all stages in order, and ``offsets``: stage s has
        ``units[offsets[s]:offsets[s+1]]``.
    """
    layers, mtp = iter(kinds.of_layer), iter(kinds.of_mtp)
    units: list[int] = []
    offsets = [0]
    for stage in layout:
        for token in stage:
            if token == "E":
                units.append(EMBEDDING)
            elif token == "t":
                units.append(next(layers))
            elif token == "m":
                units.append(next(mtp))
            else:
                units.extend([HEAD] + [MTP_HEAD] * len(kinds.of_mtp))
        offsets.append(len(units))
    return np.array(units, dtype=np.int64), np.array(offsets, dtype=np.int64)
