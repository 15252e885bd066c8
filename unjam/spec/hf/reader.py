"""Which family reads a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from unjam.spec.documents import Document, join
from unjam.spec.hf.deepseek import deepseek
from unjam.spec.hf.deepseek_v4 import deepseek_v4
from unjam.spec.hf.fields import Fields
from unjam.spec.hf.gqa import (
    ernie,
    glm4_moe,
    gpt_oss,
    hunyuan,
    llama,
    llama4,
    minimax_m2,
    mixtral,
    olmoe,
    qwen_moe,
)
from unjam.spec.hf.hybrid import mimo, minimax, nemotron_h, qwen_next
from unjam.spec.model import ModelSpec

Reader = Callable[[Fields, str], ModelSpec]

FAMILIES: dict[str, Reader] = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "kimi_k2": deepseek,
    "glm_moe_dsa": deepseek,
    "pangu_ultra_moe": deepseek,
    "deepseek_v4": deepseek_v4,
    "llama": llama,
    "mistral": llama,
    "qwen2": llama,
    "qwen3": llama,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "qwen2_moe": qwen_moe,
    "qwen3_moe": qwen_moe,
    "glm4_moe": glm4_moe,
    "dots1": glm4_moe,
    "gpt_oss": gpt_oss,
    "llama4": llama4,
    "llama4_text": llama4,
    "hunyuan_v1_moe": hunyuan,
    "ernie4_5_moe": ernie,
    "minimax": minimax,
    "minimax_m1": minimax,
    "minimax_text_01": minimax,
    "minimax_m2": minimax_m2,
    "mimo_v2_flash": mimo,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen_next,
    "qwen3_5_moe": qwen_next,
    "qwen3_5_moe_text": qwen_next,
}


def model_from_config(
    name: str,
    config: Mapping[str, Any],
    *,
    file: str = "config",
    lines: Mapping[str, int] | None = None,
    path: str = "",
) -> ModelSpec:
    """Read a Hugging Face configuration.

    Args:
        name: what the user called the model.
        config: its fields; a ``text_config`` inside holds the language model of a larger one.
        file: for messages.
        lines: line of each field of the file by dotted path, for messages.
        path: dotted path of the configuration in the file, for messages.

    Raises:
        InputError: an unknown ``model_type``, or the first field that is missing or wrong.
    """
    document = Document({}, file, lines or {})
    outer_type = config.get("model_type")
    fields = dict(config)
    if isinstance(config.get("text_config"), Mapping):
        path = join(path, "text_config")
        fields = {**config["text_config"]}
        fields.setdefault("model_type", outer_type)
        if "tie_word_embeddings" in config:
            fields.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    family = fields.get("model_type")
    found = Fields(fields, document, path)
    if not isinstance(family, str):
        raise found.error("model_type", "is missing; it names the architecture")
    reader = FAMILIES.get(family) or FAMILIES.get(str(outer_type))
    if reader is None:
        near = get_close_matches(family, FAMILIES, n=1, cutoff=0.4)
        hint = f"nearest known: {near[0]}" if near else f"known: {', '.join(sorted(FAMILIES))}"
        raise found.error("model_type", f"{family!r} is not supported; {hint}")
    return reader(found, name)
