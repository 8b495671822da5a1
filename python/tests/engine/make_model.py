"""Writes a random Llama with a byte tokenizer, as Hugging Face's files: for tests that need an engine but no sense.

    python make_model.py DIR [LAYERS HIDDEN]      default: 4 layers, hidden 256, a step of milliseconds

make_hybrid_model() and make_recurrent_model() write a random Gemma 3 and LFM 2 in its place, whose layers have several
KV-cache groups.
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


HYBRID_WINDOW = 256


def make_hybrid_model(directory: str) -> None:
    """Two layers of full attention among four that see HYBRID_WINDOW tokens: three groups of two. Always the same
    weights."""
    torch.manual_seed(21)
    config = transformers.Gemma3TextConfig(
        vocab_size=32000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        query_pre_attn_scalar=64,
        max_position_embeddings=16384,
        sliding_window=HYBRID_WINDOW,
        layer_types=2 * ["sliding_attention", "sliding_attention", "full_attention"],
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.08,
    )
    _save(transformers.Gemma3ForCausalLM(config), directory)


def make_recurrent_model(directory: str) -> None:
    """Two layers of attention among four with a recurrent state, of a convolution: three groups of two. Always the same
    weights."""
    torch.manual_seed(22)
    config = transformers.Lfm2Config(
        vocab_size=32000,
        hidden_size=256,
        intermediate_size=512,
        block_ff_dim=512,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        conv_L_cache=3,
        block_dim=256,
        conv_dim=256,
        layer_types=2 * ["conv", "conv", "full_attention"],
        max_position_embeddings=16384,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.08,
    )
    _save(transformers.Lfm2ForCausalLM(config), directory)


def _save(model: transformers.PreTrainedModel, directory: str) -> None:
    # Else a token's own embedding outweighs what the layers add, and each token is followed by itself.
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.125)
    model.to(torch.float32).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


if __name__ == "__main__":
    make_model(sys.argv[1], *(int(size) for size in sys.argv[2:4]))
