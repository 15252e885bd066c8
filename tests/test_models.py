"""Models: exact parameter counts, and no silent guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unjam.spec.errors import InputError
from unjam.spec.model import ModelSpec
from unjam.spec.models import load_model, model_from_config, model_presets

PUBLISHED = json.loads((Path(__file__).parent / "data" / "models.json").read_text())
IDS = [x["name"] for x in PUBLISHED]
# Fields that decide a count or a kind of layer wherever they are present.
STRUCTURE = (
    "hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "moe_intermediate_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank",
    "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "n_routed_experts", "num_experts",
    "num_local_experts", "moe_num_experts", "num_experts_per_tok", "moe_topk", "moe_k",
    "first_k_dense_replace", "interleave_moe_layer_step", "hybrid_override_pattern",
    "compress_ratios", "layer_types", "hybrid_layer_pattern", "mamba_num_heads", "n_groups",
    "ssm_state_size", "moe_layer_start_index", "moe_layer_end_index", "linear_num_key_heads",
    "linear_key_head_dim", "index_n_heads", "index_head_dim", "o_lora_rank", "tie_word_embeddings",
    "swa_num_key_value_heads", "swa_head_dim", "sliding_window", "hc_mult",
)  # fmt: skip


def config_of(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry["hf_fields"], "model_type": entry["model_type_in_config"]}


def counts(model: ModelSpec) -> tuple[int, ...]:
    p = model.params
    return (
        p.total_params,
        p.routed_expert_params,
        p.activated_params,
        p.activated_excl_input_embedding,
        p.activated_excl_embedding_and_lm_head,
    )


@pytest.mark.parametrize("entry", PUBLISHED, ids=IDS)
def test_counts_equal_the_published_model_to_the_last_parameter(entry: dict[str, Any]) -> None:
    model = model_from_config(entry["name"], config_of(entry))
    assert counts(model) == (
        entry["total_params"],
        entry["routed_expert_params"],
        entry["activated_params_computed"],
        entry["activated_excl_input_embedding"],
        entry["activated_excl_embedding_and_lm_head"],
    )
    expected = entry.get("mtp", {}).get("params_per_mtp_layer_excl_shared_embed_head")
    if expected is not None:
        assert model.params.mtp_params_per_layer == expected
    assert len(model.mtp) == entry.get("mtp", {}).get("num_layers", 0)


@pytest.mark.parametrize("entry", PUBLISHED, ids=IDS)
def test_a_missing_field_is_named_or_does_not_matter(entry: dict[str, Any]) -> None:
    whole = config_of(entry)
    expected = counts(model_from_config("whole", whole))
    for field in STRUCTURE:
        if field not in whole:
            continue
        config = {k: v for k, v in whole.items() if k != field}
        try:
            found = counts(model_from_config("part", config))
        except InputError as error:
            assert "field" in str(error)
            assert "\n" not in str(error)
        else:
            assert found == expected, f"without {field} the count changes silently"


@pytest.mark.parametrize("entry", PUBLISHED, ids=IDS)
@pytest.mark.parametrize("bad", [0, -1, 10**30, "many", 1.5, True, [1]])
def test_a_wrong_value_is_one_clear_line(entry: dict[str, Any], bad: object) -> None:
    for field in ("hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers"):
        with pytest.raises(InputError, match=field) as caught:
            model_from_config("bad", {**config_of(entry), field: bad})
        assert "\n" not in str(caught.value)


def deepseek() -> dict[str, Any]:
    return config_of(next(x for x in PUBLISHED if x["name"] == "DeepSeek-V3"))


def test_openpangu_spellings() -> None:
    entry = next(x for x in PUBLISHED if "Pangu" in x["name"])
    config = config_of(entry)
    spelt = {
        "n_routed_experts": "num_routed_experts", "n_shared_experts": "num_shared_experts",
        "first_k_dense_replace": "num_dense_layers", "num_nextn_predict_layers": "num_mtp_layers",
        "q_lora_rank": "attention_q_lora_dim", "kv_lora_rank": "attention_kv_lora_dim",
        "qk_nope_head_dim": "attention_qk_dim", "qk_rope_head_dim": "attention_qk_rope_dim",
        "v_head_dim": "attention_v_dim",
    }  # fmt: skip
    own = {spelt.get(k, k): v for k, v in config.items()}
    assert counts(model_from_config("x", own)) == counts(model_from_config("x", config))


def test_text_config_is_the_language_model() -> None:
    entry = next(x for x in PUBLISHED if x["text_config_key"])
    nested = {"model_type": entry["model_type_in_config"], "text_config": entry["hf_fields"]}
    assert counts(model_from_config("x", nested))[0] == entry["total_params"]


def test_more_chosen_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="num_experts_per_tok"):
        model_from_config("x", {**deepseek(), "num_experts_per_tok": 300})


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Qwen3-30B-A3B", "mlp_only_layers"),
        ("MiMo-V2-Flash", "hybrid_layer_pattern"),
        ("Qwen3.5-397B-A17B", "layer_types"),
        ("gpt-oss-120b", "layer_types"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "hybrid_override_pattern"),
        ("DeepSeek-V4-Pro", "compress_ratios"),
    ],
)
def test_a_wrong_list_of_layers_is_one_clear_line(name: str, field: str) -> None:
    config = config_of(next(x for x in PUBLISHED if x["name"] == name))
    count = config["num_hidden_layers"]
    for bad in (3, 1.5, True, -1, {}, [[]] * count, [{}] * count, ["odd"] * count, [count] * count):
        if field == "compress_ratios" and bad == [count] * count:
            continue  # a ratio may be any number
        with pytest.raises(InputError, match=field) as caught:
            model_from_config("bad", {**config, field: bad})
        assert "\n" not in str(caught.value)


def test_a_wrong_field_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = json.dumps(deepseek(), indent=1).replace('"hidden_size": 7168', '"hidden_size": -1')
    path.write_text(text)
    line = 1 + text[: text.index('"hidden_size"')].count("\n")
    with pytest.raises(InputError, match=f"config.json:{line}: field hidden_size: -1"):
        load_model(str(path))


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"deepseek_v9.*nearest known: deepseek"):
        model_from_config("x", {**deepseek(), "model_type": "deepseek_v9"})
    with pytest.raises(InputError, match="model_type: is missing"):
        model_from_config("x", {})


def test_deepseek_v32_adds_an_indexer() -> None:
    config = {**deepseek(), "model_type": "deepseek_v32"}
    config |= {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
    total = model_from_config("x", config).params.total_params
    assert total / 1e9 == pytest.approx(671.878, abs=5e-4)


# Published totals in billions, from configurations quoted in the models' cards.
FURTHER = [
    (
        480.155,
        {"model_type": "qwen3_moe", "hidden_size": 6144, "num_hidden_layers": 62,
         "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "num_experts": 160, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
         "intermediate_size": 8192, "attention_bias": False, "tie_word_embeddings": False},
    ),
    (
        140.621,
        {"model_type": "mixtral", "hidden_size": 6144, "num_hidden_layers": 56,
         "num_attention_heads": 48, "num_key_value_heads": 8, "intermediate_size": 16384,
         "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
         "tie_word_embeddings": False},
    ),
    (
        20.915,
        {"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "head_dim": 64,
         "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 2880,
         "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088,
         "sliding_window": 128, "attention_bias": True, "tie_word_embeddings": False,
         "layer_types": ["sliding_attention", "full_attention"] * 12},
    ),
    (
        400.712,
        {"model_type": "llama4", "hidden_size": 5120, "num_hidden_layers": 48, "head_dim": 128,
         "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 8192,
         "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 2, "num_local_experts": 128,
         "num_experts_per_tok": 1, "vocab_size": 202048},
    ),
    (
        106.852,
        {"model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "head_dim": 128,
         "num_attention_heads": 96, "num_key_value_heads": 8, "intermediate_size": 10944,
         "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8,
         "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": False,
         "attention_bias": True, "vocab_size": 151552, "tie_word_embeddings": False},
    ),
    (
        6.919,
        {"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024,
         "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50304,
         "tie_word_embeddings": False},
    ),
    (
        142.774,
        {"model_type": "dots1", "hidden_size": 4096, "num_hidden_layers": 62, "head_dim": 128,
         "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 10944,
         "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 6,
         "n_shared_experts": 2, "first_k_dense_replace": 1, "attention_bias": False,
         "vocab_size": 152064, "tie_word_embeddings": False},
    ),
    (
        228.690,
        {"model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "head_dim": 128,
         "num_attention_heads": 48, "num_key_value_heads": 8, "intermediate_size": 1536,
         "num_local_experts": 256, "num_experts_per_tok": 8, "vocab_size": 200064,
         "use_qk_norm": True, "tie_word_embeddings": False},
    ),
    (
        70.554,
        {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "vocab_size": 128256, "tie_word_embeddings": False},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("billions", "config"), FURTHER, ids=[x["model_type"] for _, x in FURTHER])
def test_further_models_have_their_published_size(billions: float, config: dict[str, Any]) -> None:
    total = model_from_config("further", config).params.total_params
    assert total / 1e9 == pytest.approx(billions, abs=6e-4)


def test_every_preset_loads_and_is_one_of_the_published() -> None:
    totals = {x["total_params"] for x in PUBLISHED}
    assert len(model_presets()) == len(PUBLISHED)
    for name in model_presets():
        model, config = load_model(name)
        assert model.params.total_params in totals
        assert config["_source"]


def test_a_path_and_a_folder_load_like_the_preset(tmp_path: Path) -> None:
    folder = tmp_path / "DeepSeek-V3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(deepseek()))
    preset = load_model("deepseek-v3")[0]
    for path in (folder, folder / "config.json"):
        assert load_model(str(path))[0].layers == preset.layers
    assert load_model(str(folder))[0].name == "DeepSeek-V3"


@pytest.mark.parametrize(
    ("text", "words"), [("{", "config.json:1"), ('{"a": 1,}', ":1"), ("[]", "mapping"), ("", ":")]
)
def test_a_corrupt_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean deepseek-v3"):
        load_model("deepseek-v33")
