"""Writes a random Llama with a byte tokenizer, as Hugging Face's files: for tests that need an engine but no sense.

    python make_model.py DIR [LAYERS HIDDEN]      default: 4 layers, hidden 256, a step of milliseconds
"""

from __future__ import annotations

import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {letter: 3 + i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def make_model(directory: str, layers: int = 4, hidden: int = 256) -> None:
    """Always the same weights."""
    torch.manual_seed(20)
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(2, hidden // 256),
        head_dim=64,
        max_position_embeddings=16384,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.08,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


if __name__ == "__main__":
    make_model(sys.argv[1], *(int(size) for size in sys.argv[2:4]))
