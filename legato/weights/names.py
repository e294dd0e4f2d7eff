"""What each file format calls the tensors of the llama family; `{i}` is the layer."""

HF_NAMES = {
    "embed_tokens": "model.embed_tokens.weight",
    "layers.{i}.input_norm": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.q_proj": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k_proj": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v_proj": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o_proj": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.post_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.gate_proj": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up_proj": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down_proj": "model.layers.{i}.mlp.down_proj.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}

GGUF_NAMES = {
    "embed_tokens": "token_embd.weight",
    "layers.{i}.input_norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.q_proj": "blk.{i}.attn_q.weight",
    "layers.{i}.k_proj": "blk.{i}.attn_k.weight",
    "layers.{i}.v_proj": "blk.{i}.attn_v.weight",
    "layers.{i}.o_proj": "blk.{i}.attn_output.weight",
    "layers.{i}.post_norm": "blk.{i}.ffn_norm.weight",
    "layers.{i}.gate_proj": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up_proj": "blk.{i}.ffn_up.weight",
    "layers.{i}.down_proj": "blk.{i}.ffn_down.weight",
    "final_norm": "output_norm.weight",
    "lm_head": "output.weight",
}

HARMLESS_SUFFIXES = (".rotary_emb.inv_freq",)  # older checkpoints store what rope_theta says


def layer_names(names: dict[str, str], num_layers: int) -> dict[str, str]:
    """Canonical name -> name in the file, with every layer spelled out."""
    expanded: dict[str, str] = {}
    for canonical, stored in names.items():
        for i in range(num_layers) if "{i}" in canonical else (0,):
            expanded[canonical.format(i=i)] = stored.format(i=i)
    return expanded
