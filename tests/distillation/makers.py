"""What tests of distillation are made from."""

import itertools

import torch

SUBJECTS, VERBS = ("the cat", "a dog", "one bird", "nobody here"), ("saw", "likes", "heard", "remembers")
OBJECTS = ("the milk", "a bone", "seeds", "everything")
DOCUMENTS = tuple(f"{s} {v} {o} ." for s, v, o in itertools.product(SUBJECTS, VERBS, OBJECTS)) * 3


def llama_config(vocab_size, **changes):
    from transformers import LlamaConfig

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    told = {"vocab_size": vocab_size, "max_position_embeddings": 128, "bos_token_id": 0}
    return LlamaConfig(**told | sizes | changes)


def save_llama(folder, tokenizer, seed=5, **changes):
    """A Llama that has learnt nothing, saved as one that has."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    LlamaForCausalLM(llama_config(tokenizer.vocab_size, **changes)).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def load_llama(folder):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder).eval()
