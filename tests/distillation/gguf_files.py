"""A Llama written as a GGUF file, as llama.cpp's converter names and turns its tensors."""

import numpy as np

NAMES = {
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


def write_gguf(path, model, tokenizer):
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(*_renamed(name, tensor.float().numpy(), config.num_attention_heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer, tokenizer):
    import json

    model = json.loads(tokenizer._tokenizer.to_str())["model"]
    tokens = [tokenizer.token(number) for number in range(tokenizer.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == "<eos>" else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _renamed(name, values, heads):
    name = name.removeprefix("model.")
    fixed = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    if name.startswith("layers."):
        _, layer, part = name.removesuffix(".weight").split(".", 2)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):  # halves of a head's rotation become neighbours
            rows, columns = values.shape
            values = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        return f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(values)
    return fixed.get(name, "output.weight"), values
