"""Small model files, byte for byte as a test wants them."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from legato.modelfiles.gguf_header import GGML_TYPES

GGML_IDS = {ggml_type.name: type_id for type_id, ggml_type in GGML_TYPES.items()}


def gguf_text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_value(value: Any) -> bytes:
    """A metadata value with its kind: bool, int, float, str, or a list of int, float or str."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, str | bytes):
        return struct.pack("<I", 8) + gguf_text(value)
    if value and isinstance(value[0], float):
        return struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    if value and isinstance(value[0], int):
        return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(gguf_text, value))


def gguf_bytes(
    metadata: dict[str, Any],
    tensors: dict[str, tuple[tuple[int, ...], str, bytes]] | None = None,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    """A file of version 3. tensors: name -> (shape, outermost first; type; data)."""
    tensors = tensors or {}
    table, data = b"", b""
    for name, (shape, type_name, values) in tensors.items():
        table += gguf_text(name) + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        table += struct.pack("<IQ", GGML_IDS[type_name], len(data))
        data += values + bytes(-len(values) % 32)
    entries = b"".join(gguf_text(key) + gguf_value(value) for key, value in metadata.items())
    header = magic + struct.pack("<IQQ", version, len(tensors), len(metadata)) + entries + table
    return header + bytes(-len(header) % 32) + data


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

TINY_GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 12,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 4,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
