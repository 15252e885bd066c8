"""A plan as launch arguments of Megatron-LM (and of MindSpeed, which takes the same ones).

Names follow Megatron-LM's configuration classes; Megatron-Bridge translates them. What unjam does
beyond Megatron is mapped to the nearest thing Megatron has, and a comment says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from unjam.spec.model import Attention, DenseFFN, ModelSpec
from unjam.spec.plan import Plan
from unjam.spec.strategy import RECOMPUTE

# Megatron's module names are unjam's; the order makes the output stable.
_MODULES = ("layernorm", "moe_act", "mla_up_proj", "mlp", "shared_experts", "moe")
_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}


def to_megatron(plan: Plan, model: ModelSpec) -> str:
    """A shell fragment: comments, environment, and the arguments as ``MEGATRON_ARGS``."""
    lines = [f"# {x}" for x in megatron_remarks(plan, model)]
    lines += [f"export {k}={shlex.quote(v)}" for k, v in megatron_environment(plan).items()]
    groups = _grouped(megatron_arguments(plan, model))
    lines.append("MEGATRON_ARGS=(")
    lines += ["  " + " ".join(shlex.quote(x) for x in group) for group in groups]
    return "\n".join([*lines, ")", ""])


def _grouped(arguments: list[str]) -> list[list[str]]:
    """Each flag with its values."""
    groups: list[list[str]] = []
    for x in arguments:
        if x.startswith("--"):
            groups.append([x])
        else:
            groups[-1].append(x)
    return groups


def megatron_arguments(plan: Plan, model: ModelSpec) -> list[str]:
    """The arguments, flags and values in one list.

    Args:
        plan: the plan.
        model: the model that `plan.model_config` describes.
    """
    flags: dict[str, Any] = {}
    if _beyond_arguments(model) is None:
        flags |= _model_flags(plan, model)
        flags |= _attention_flags(model)
        flags |= _moe_flags(model)
        flags |= _router_flags(plan, model)
    flags |= _parallel_flags(plan, model)
    flags |= _job_flags(plan)
    flags |= _recompute_flags(plan, model)
    flags |= _overlap_flags(plan, model)
    out: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        out.append(f"--{name}")
        if value is not True:
            out += [str(x) for x in value] if isinstance(value, list) else [str(value)]
    return out


def _beyond_arguments(model: ModelSpec) -> str | None:
    """What Megatron's arguments, which describe one layer for all, cannot say of this model."""
    attentions = {x.attention for x in model.layers}
    if len(attentions) > 1:
        return f"its layers have {len(attentions)} kinds of attention"
    attention = next(iter(attentions))
    if attention is None or attention.kind not in {"gqa", "mla"}:
        return "its attention is neither grouped-query nor latent"
    if attention.window or attention.top_keys or attention.compress:
        return "its attention is sparse"
    if model.moe and all(x.name != "gate_up" for x in model.moe.expert):
        return "its experts have no gate"
    return None


def _model_flags(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    widths = [x.ffn.width for x in model.layers if isinstance(x.ffn, DenseFFN)]
    expert = model.moe.expert_width if model.moe else None
    config = _language_config(plan)
    return {
        "num-layers": len(model.layers),
        "hidden-size": model.hidden,
        "ffn-hidden-size": widths[0] if widths else expert,
        "vocab-size": model.vocab,
        "max-position-embeddings": max(model.max_seq_len or 0, plan.job.seq_len),
        "position-embedding-type": "rope",
        "rotary-base": _whole(config.get("rope_theta")),
        "normalization": "RMSNorm",
        "norm-epsilon": config.get("rms_norm_eps"),
        "swiglu": True,
        "disable-bias-linear": True,
        "untie-embeddings-and-output-weights": not model.tied,
        "mtp-num-layers": len(model.mtp) or None,
    }


def _language_config(plan: Plan) -> Mapping[str, Any]:
    text = plan.model_config.get("text_config")
    return text if isinstance(text, Mapping) else plan.model_config


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value == int(value) else value


def _attention_flags(model: ModelSpec) -> dict[str, Any]:
    attention = next((x.attention for x in model.layers if x.attention), None)
    if attention is None:
        return {}
    flags: dict[str, Any] = {"num-attention-heads": attention.heads}
    if attention.kind == "mla":
        return flags | _latent_flags(attention)
    grouped = attention.kv_heads < attention.heads
    return flags | {
        "kv-channels": attention.qk_head_dim,
        "group-query-attention": grouped,
        "num-query-groups": attention.kv_heads if grouped else None,
    }


def _latent_flags(attention: Attention) -> dict[str, Any]:
    linears = {x.name: x for x in attention.linears}
    rank = linears["kv_b"].inputs
    rope = linears["kv_a"].outputs - rank
    return {
        "multi-latent-attention": True,
        "q-lora-rank": linears["q_b"].inputs if "q_b" in linears else None,
        "kv-lora-rank": rank,
        "qk-head-dim": attention.qk_head_dim - rope,
        "qk-pos-emb-head-dim": rope,
        "v-head-dim": attention.v_head_dim,
        "qk-layernorm": True,
    }


def _moe_flags(model: ModelSpec) -> dict[str, Any]:
    moe = model.moe
    if moe is None:
        return {}
    sparse = [int(x.moe is not None) for x in model.layers]
    limited = moe.groups > 1
    return {
        "num-experts": moe.experts,
        "moe-router-topk": moe.top_k,
        "moe-ffn-hidden-size": moe.expert_width,
        "moe-shared-expert-intermediate-size": moe.shared_width or None,
        "moe-layer-freq": None if all(sparse) else _frequency(sparse),
        "moe-router-num-groups": moe.groups if limited else None,
        "moe-router-group-topk": moe.top_groups if limited else None,
        "moe-grouped-gemm": True,
    }


def _router_flags(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    """How the configuration says that tokens choose experts; what it leaves out stays out."""
    if model.moe is None:
        return {}
    config = _language_config(plan)
    score = config.get("scoring_func")
    softmax = score in {None, "softmax"}
    return {
        "moe-router-score-function": score if score in {"sigmoid", "softmax"} else None,
        "moe-router-enable-expert-bias": config.get("topk_method") == "noaux_tc",
        "moe-router-topk-scaling-factor": config.get("routed_scaling_factor"),
        # Megatron's softmax follows the choice, which is the same as renormalising the chosen.
        "moe-router-pre-softmax": softmax and config.get("norm_topk_prob") is False,
    }


def _frequency(sparse: list[int]) -> str:
    """Megatron evaluates this as a Python list; leading zeros and ones are folded."""
    dense = sparse.index(1)
    if dense and all(sparse[dense:]):
        return f"([0]*{dense}+[1]*{len(sparse) - dense})"
    return "[" + ",".join(map(str, sparse)) + "]"


def _parallel_flags(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    s = plan.strategy
    # The layout fixes the chunks; Megatron accepts only one way to say it.
    return {
        "tensor-model-parallel-size": s.tp,
        "sequence-parallel": s.tp > 1,
        "pipeline-model-parallel-size": s.pp,
        "pipeline-model-parallel-layout": s.layout if s.pp > 1 else None,
        "context-parallel-size": s.cp,
        "expert-model-parallel-size": s.ep if model.moe else None,
        "expert-tensor-parallel-size": s.etp if model.moe else None,
        "use-distributed-optimizer": s.zero == 1,
        # MindSpeed refuses it beside its overlap of forward and backward.
        "overlap-grad-reduce": s.zero >= 1 and not (_on_ascend(plan) and s.overlaps),
        "overlap-param-gather": s.zero >= 1 and not (_on_ascend(plan) and s.overlaps),
        "use-megatron-fsdp": s.zero > 1,
        "data-parallel-sharding-strategy": _SHARDED.get(s.zero),
        "ckpt-format": "fsdp_dtensor" if s.zero > 1 else None,
    }


def _job_flags(plan: Plan) -> dict[str, Any]:
    return {
        "seq-length": plan.job.seq_len,
        "micro-batch-size": plan.strategy.mbs,
        "global-batch-size": plan.job.global_batch,
        "bf16": True,
        "fp8-format": "hybrid" if plan.job.dtype == "fp8" else None,
    }


def _recompute_flags(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    modules = RECOMPUTE[plan.strategy.recompute]
    if "full" in modules:
        return {
            "recompute-granularity": "full",
            "recompute-method": "uniform",
            "recompute-num-layers": 1,
        }
    if not modules:
        return {}
    # Megatron refuses to recompute what the model has not.
    named = [x for x in _MODULES if x in modules & model.recomputable]
    if not named:
        return {}
    return {"recompute-granularity": "selective", "recompute-modules": named}


def _overlap_flags(plan: Plan, model: ModelSpec) -> dict[str, Any]:
    if model.moe is None:
        return {}
    overlaps = plan.strategy.overlaps
    if _on_ascend(plan):
        return {"moe-token-dispatcher-type": "alltoall", "moe-fb-overlap": overlaps}
    return {
        "moe-token-dispatcher-type": "alltoall",
        "overlap-moe-expert-parallel-comm": overlaps,
        "delay-wgrad-compute": overlaps,
    }


def _on_ascend(plan: Plan) -> bool:
    device = plan.cluster.get("device")
    name = device.get("name", "") if isinstance(device, Mapping) else ""
    return any(x in str(name).lower() for x in ("ascend", "atlas", "910"))


def megatron_environment(plan: Plan) -> dict[str, str]:
    """Environment variables of the launch."""
    s = plan.strategy
    if _on_ascend(plan):
        return {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # MindSpeed keeps Megatron's check
            "HCCL_CONNECT_TIMEOUT": "1800",
            "TASK_QUEUE_ENABLE": "2",
            "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        }
    out = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    if s.overlaps:
        out["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif (s.tp > 1 or s.cp > 1) and s.zero < 3:
        out["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return out


def megatron_remarks(plan: Plan, model: ModelSpec) -> list[str]:
    """What a reader should know: the prediction, and where Megatron has only something near."""
    s = plan.strategy
    out = [
        f"{plan.model_name}: {s}, {plan.job.devices} devices",
        f"predicted {plan.prediction.step_seconds:.2f} s a step; {plan.prediction.calibrated_on}",
    ]
    beyond = _beyond_arguments(model)
    if beyond:
        out.append(f"the model's own arguments are not exported: {beyond}; use its recipe")
    else:
        out.append(
            "not exported: norms of queries and keys without MLA, biases, RoPE scaling, "
            "initialisation, losses, data and optimizer; take them from the model's recipe"
        )
    if any(x.norms > 2 for x in model.layers):
        out.append(
            "norms after attention and FFN (sandwich) need a layer specification of their own"
        )
    if s.overlaps and _on_ascend(plan):
        out.append(
            "schedule adaptive: nearest in MindSpeed is --moe-fb-overlap, which excludes "
            "--overlap-grad-reduce: gradients are reduced after the last backward"
        )
    elif s.overlaps:
        out.append(
            "schedule adaptive: nearest in Megatron is --overlap-moe-expert-parallel-comm with "
            "--delay-wgrad-compute"
        )
        out.append("32 connections, not 1: with one, All-to-All waits behind the computation")
    if s.dispatcher != "flat":
        out.append(
            f"dispatcher {s.dispatcher}: nearest in Megatron is flex with "
            "--moe-flex-dispatcher-backend deepep where it runs, else alltoall as below"
        )
    if model.moe and model.moe.shared and s.tp > 1:
        out.append("unjam keeps a shared expert whole on every TP rank; Megatron cuts it by TP")
    return out
