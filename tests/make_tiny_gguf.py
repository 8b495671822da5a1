#!/usr/bin/env python3
"""Writes a small Llama model with random weights as a GGUF file, for tests that need an engine but no sense.

    make_tiny_gguf.py OUT [--layers N] [--context N] [--seed N]

Needs nothing but the standard library. The same arguments give the same bytes; another seed gives another model of
the same shape. The tokenizer knows single bytes and lower-case letters, so that about every byte of text is a token.
"""

import argparse
import array
import hashlib
import os
import random
import struct
import sys

# Width of the hidden state, of the feed-forward layer, and the heads of attention (queries, and keys with values).
HIDDEN = 256
FEED_FORWARD = 512
HEADS = 8
KV_HEADS = 4
HEAD_SIZE = HIDDEN // HEADS

# GGUF's names for the types of metadata values and tensors, and for the kinds of token.
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9
TENSOR_F32, TENSOR_F16 = 0, 1
TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_BYTE = 1, 2, 3, 6
ALIGNMENT = 32


def vocabulary():
    """(text, kind) of every token, by its id."""
    tokens = [("<unk>", TOKEN_UNKNOWN), ("<s>", TOKEN_CONTROL), ("</s>", TOKEN_CONTROL)]
    tokens += [(f"<0x{byte:02X}>", TOKEN_BYTE) for byte in range(256)]
    tokens += [(chr(letter), TOKEN_NORMAL) for letter in range(ord("a"), ord("z") + 1)]
    tokens += [("\u2581", TOKEN_NORMAL)]  # A space, in this kind of tokenizer.
    return tokens


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    """A metadata value with its type in front."""
    packers = {
        UINT32: lambda x: struct.pack("<I", x),
        INT32: lambda x: struct.pack("<i", x),
        FLOAT32: lambda x: struct.pack("<f", x),
        STRING: string,
    }
    if isinstance(content, list):
        items = b"".join(packers[kind](x) for x in content)
        return struct.pack("<IIQ", ARRAY, kind, len(content)) + items
    return struct.pack("<I", kind) + packers[kind](content)


def metadata(layers, context, seed):
    tokens = vocabulary()
    return [
        ("general.architecture", value(STRING, "llama")),
        ("general.name", value(STRING, f"tiny-random-{seed}")),
        ("general.file_type", value(UINT32, 1)),  # Mostly 16-bit floats.
        ("llama.context_length", value(UINT32, context)),
        ("llama.embedding_length", value(UINT32, HIDDEN)),
        ("llama.block_count", value(UINT32, layers)),
        ("llama.feed_forward_length", value(UINT32, FEED_FORWARD)),
        ("llama.attention.head_count", value(UINT32, HEADS)),
        ("llama.attention.head_count_kv", value(UINT32, KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", value(FLOAT32, 1e-5)),
        ("llama.rope.dimension_count", value(UINT32, HEAD_SIZE)),
        ("llama.vocab_size", value(UINT32, len(tokens))),
        ("tokenizer.ggml.model", value(STRING, "llama")),
        ("tokenizer.ggml.tokens", value(STRING, [text for text, _ in tokens])),
        ("tokenizer.ggml.scores", value(FLOAT32, [0.0] * len(tokens))),
        ("tokenizer.ggml.token_type", value(INT32, [kind for _, kind in tokens])),
        ("tokenizer.ggml.bos_token_id", value(UINT32, 1)),
        ("tokenizer.ggml.eos_token_id", value(UINT32, 2)),
        ("tokenizer.ggml.unknown_token_id", value(UINT32, 0)),
    ]


def tensor_shapes(layers):
    """(name, rows, columns) of every tensor; a vector has no rows. In GGUF the columns are the first dimension."""
    tokens = len(vocabulary())
    yield "token_embd.weight", tokens, HIDDEN
    yield "output_norm.weight", None, HIDDEN
    yield "output.weight", tokens, HIDDEN
    for layer in range(layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", None, HIDDEN
        yield prefix + "attn_q.weight", HIDDEN, HIDDEN
        yield prefix + "attn_k.weight", KV_HEADS * HEAD_SIZE, HIDDEN
        yield prefix + "attn_v.weight", KV_HEADS * HEAD_SIZE, HIDDEN
        yield prefix + "attn_output.weight", HIDDEN, HIDDEN
        yield prefix + "ffn_norm.weight", None, HIDDEN
        yield prefix + "ffn_gate.weight", FEED_FORWARD, HIDDEN
        yield prefix + "ffn_up.weight", FEED_FORWARD, HIDDEN
        yield prefix + "ffn_down.weight", HIDDEN, FEED_FORWARD


def random_weights(name, seed, rows, columns):
    """A matrix of 16-bit floats with mean 0 and, as a trained model would have it, a deviation that keeps the
    activations' size from layer to layer (1 for the embedding).

    Each number is the sum of four random bytes out of a table: close enough to a normal distribution, and fast.
    """
    deviation = 1.0 if name == "token_embd.weight" else columns**-0.5
    # A byte has a deviation of 73.9; the sum of four, twice that.
    table = [struct.pack("<e", (total - 4 * 127.5) / 147.8 * deviation) for total in range(4 * 255 + 1)]
    halves = array.array("H", [struct.unpack("<H", x)[0] for x in table])
    count = rows * columns
    # Not seeded by the name's hash(), which differs from process to process.
    generator = random.Random(hashlib.sha256(f"{seed}/{name}".encode()).digest())
    noise = generator.randbytes(4 * count)
    sums = map(sum, zip(noise[0::4], noise[1::4], noise[2::4], noise[3::4]))
    weights = array.array("H", [halves[s] for s in sums])
    if sys.byteorder == "big":
        weights.byteswap()
    return weights.tobytes()


def write_model(path, layers, context, seed):
    described, contents, offset = [], [], 0
    for name, rows, columns in tensor_shapes(layers):
        if rows is None:
            dimensions, kind, data = [columns], TENSOR_F32, struct.pack(f"<{columns}f", *[1.0] * columns)
        else:
            dimensions, kind, data = [columns, rows], TENSOR_F16, random_weights(name, seed, rows, columns)
        described.append(string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset))
        data += b"\0" * (-len(data) % ALIGNMENT)
        contents.append(data)
        offset += len(data)

    pairs = metadata(layers, context, seed)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(described), len(pairs))
    header += b"".join(string(key) + encoded for key, encoded in pairs)
    header += b"".join(described)
    header += b"\0" * (-len(header) % ALIGNMENT)

    # Whole or not at all: tests may run side by side, and be interrupted.
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(header)
        file.writelines(contents)
    os.replace(temporary, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", metavar="OUT")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=8192, help="tokens that the model says it was trained for")
    parser.add_argument("--seed", type=int, default=1, help="of the weights")
    arguments = parser.parse_args()
    write_model(arguments.path, arguments.layers, arguments.context, arguments.seed)


if __name__ == "__main__":
    main()
