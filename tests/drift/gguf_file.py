"""A small Llama as a GGUF file, unrounded."""

from pathlib import Path
from typing import Any

from gguf import GGUFWriter


def as_gguf(model: Any, path: Path) -> Path:
    """Its weights under llama.cpp's names, with a tokenizer of as many words."""
    config = model.config
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    words = ["t", "1", "t1", *(f"w{i}" for i in range(config.vocab_size - 3))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(2)
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for n in range(config.num_hidden_layers):
        names |= {f"model.layers.{n}.{ours}.weight": f"blk.{n}.{theirs}.weight" for ours, theirs in parts.items()}
    for ours, theirs in names.items():
        weight = model.state_dict()[ours].numpy()
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        for part, n in heads.items():
            if part in theirs:  # rotary halves as llama.cpp wants them: interleaved
                weight = weight.reshape(n, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(theirs, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
