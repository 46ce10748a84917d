"""The animals: a config for each architecture, so small that a forward takes milliseconds.

Sliding windows are 3 tokens, shorter than most prompts; chunks of recurrent layers are 4. Weights are random and large
enough (standard deviation 0.2) that a wrong mask or position shows.
"""

from dataclasses import dataclass
from typing import Any

import transformers

VOCAB = 37
#: What most configs call their sizes.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
#: Those of models from before Llama.
OLD: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
EMBD: dict[str, Any] = OLD | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
WINDOW: dict[str, Any] = {"sliding_window": 3}
TWO_KINDS: dict[str, Any] = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXED: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 4}
DELTA: dict[str, Any] = MIXED | {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}


@dataclass(frozen=True, slots=True)
class Family:
    """`refused`: a part of the sentence that kleash says at load, for the few that it cannot train."""

    config: str
    sizes: dict[str, Any]
    refused: str | None = None

    def build(self) -> Any:
        """The config, as transformers makes it."""
        return getattr(transformers, self.config)(**self.sizes)


def _family(config: str, **own: Any) -> Family:
    return Family(config, SIZES | own)


ATTENTION: dict[str, Family] = {
    "Llama": _family("LlamaConfig", tie_word_embeddings=True),
    "Qwen2": _family("Qwen2Config"),
    "Qwen3": _family("Qwen3Config"),
    "Mistral, window": _family("MistralConfig", **WINDOW),
    "Gemma": _family("GemmaConfig"),
    "Gemma 2, window": _family(
        "Gemma2Config", **WINDOW, final_logit_softcapping=3.0, attn_logit_softcapping=5.0, query_pre_attn_scalar=8
    ),
    "Gemma 3, window": _family("Gemma3TextConfig", **TWO_KINDS, query_pre_attn_scalar=8),
    "Gemma 3n, window": _family(
        "Gemma3nTextConfig",
        num_hidden_layers=4,
        sliding_window=3,
        layer_types=["sliding_attention", "full_attention"] * 2,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=4,
        num_kv_shared_layers=2,
        laurel_rank=4,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * 4,
        intermediate_size=[48] * 4,
    ),
    "Gemma 4, window": _family(
        "Gemma4TextConfig", **TWO_KINDS, vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=4
    ),
    "GPT-2": Family("GPT2Config", EMBD),
    "GPT-J": Family("GPTJConfig", EMBD | {"rotary_dim": 4}),
    "GPT-Neo, window": Family(
        "GPTNeoConfig",
        OLD
        | {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 3},
    ),
    "GPT-NeoX": _family("GPTNeoXConfig"),
    "CodeGen": Family("CodeGenConfig", EMBD | {"rotary_dim": 4}),
    "OPT": Family(
        "OPTConfig",
        {k: v for k, v in SIZES.items() if k not in ("intermediate_size", "initializer_range")}
        | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2},
    ),
    "XGLM": Family(
        "XGLMConfig",
        {k: v for k, v in OLD.items() if k != "initializer_range"}
        | {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "init_std": 0.2},
    ),
    "BioGPT": _family("BioGptConfig"),
    "Bloom (alibi)": Family("BloomConfig", OLD | {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "MPT (alibi)": Family("MptConfig", OLD | {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "Falcon": Family("FalconConfig", OLD | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "Falcon, alibi": Family(
        "FalconConfig", OLD | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True}
    ),
    "Phi": _family("PhiConfig"),
    "Phi-3, window": _family("Phi3Config", **WINDOW),
    "Granite": _family("GraniteConfig", logits_scaling=4.0, residual_multiplier=0.5, embedding_multiplier=2.0),
    "OLMo": _family("OlmoConfig"),
    "OLMo 2": _family("Olmo2Config"),
    "OLMo 3, window": _family("Olmo3Config", **TWO_KINDS),
    "StableLM": _family("StableLmConfig"),
    "Cohere": _family("CohereConfig", logit_scale=0.125),
    "Cohere 2, window": _family("Cohere2Config", **TWO_KINDS),
    "Starcoder2, window": _family("Starcoder2Config", **WINDOW),
    "SmolLM3": _family("SmolLM3Config"),
    "GLM-4": _family("Glm4Config"),
    "EXAONE 4, window": _family("Exaone4Config", **WINDOW, sliding_window_pattern=2),
    "Nemotron": _family("NemotronConfig"),
    "ERNIE 4.5": _family("Ernie4_5Config"),
}

OF_EXPERTS: dict[str, Family] = {
    "Mixtral": _family("MixtralConfig", num_local_experts=4),
    "Qwen3-MoE": _family("Qwen3MoeConfig", **EXPERTS),
    "OLMoE": _family("OlmoeConfig", num_experts=4, num_experts_per_tok=2),
    "gpt-oss, window": _family("GptOssConfig", **TWO_KINDS, **LOCAL_EXPERTS),
    "DeepSeek-V3": _family(
        "DeepseekV3Config",
        head_dim=4,
        num_key_value_heads=4,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        first_k_dense_replace=1,
    ),
    "Llama 4, chunks": _family(
        "Llama4TextConfig",
        num_local_experts=2,
        intermediate_size_mlp=48,
        attention_chunk_size=4,
        interleave_moe_layer_step=1,
    ),
}

RECURRENT: dict[str, Family] = {
    "Jamba": _family(
        "JambaConfig",
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "Bamba": _family("BambaConfig", attn_layer_indices=[1], **MAMBA),
    "Qwen3-Next": _family("Qwen3NextConfig", **DELTA, **EXPERTS, shared_expert_intermediate_size=16),
    "Qwen3.5": _family("Qwen3_5TextConfig", **DELTA),
    "Falcon-H1": _family("FalconH1Config", **MAMBA | {"mamba_d_head": 8}, mamba_d_ssm=32, lm_head_multiplier=0.5),
    "Granite 4 (hybrid)": _family(
        "GraniteMoeHybridConfig",
        **MIXED | MAMBA | {"num_local_experts": 2, "num_experts_per_tok": 1},
        shared_intermediate_size=16,
    ),
    "Zamba2": _family(
        "Zamba2Config",
        num_key_value_heads=4,
        mamba_d_state=8,
        n_mamba_heads=4,
        mamba_headdim=16,
        chunk_size=4,
        layers_block_type=["mamba", "hybrid"],
        num_mem_blocks=1,
    ),
    "Nemotron-H": _family(
        "NemotronHConfig",
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=8,
        chunk_size=4,
        n_groups=1,
        layers_block_type=["mamba", "attention"],
    ),
    "LFM2": _family("Lfm2Config", layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    "Mamba": Family("MambaConfig", OLD | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "Mamba2": Family(
        "Mamba2Config",
        OLD
        | {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "n_groups": 1}
        | {"state_size": 8, "chunk_size": 4},
    ),
}

#: Models that left padding changes: refused at load, in a sentence.
REFUSED: dict[str, Family] = {
    "RecurrentGemma": Family(
        "RecurrentGemmaConfig",
        SIZES
        | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 3, "logits_soft_cap": 3.0}
        | {"block_types": ["recurrent", "recurrent", "attention"]},
        refused="gives other numbers for a padded row",
    ),
    "RWKV": Family(
        "RwkvConfig",
        {k: v for k, v in OLD.items() if k != "initializer_range"}
        | {"hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
        refused="gives other numbers for a padded row",
    ),
}

FAMILIES: dict[str, Family] = ATTENTION | OF_EXPERTS | RECURRENT | REFUSED
