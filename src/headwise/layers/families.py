"""What is known of models by their types: the order of their rope's columns, its part of a head, what else they do.

Tables alone: knows model_types and keys of configurations; knows no arrays and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

KEYS = {  # of a configuration, by what they say; the first that says something counts
    "n_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads"),
    "n_kv_heads": ("num_key_value_heads", "n_kv_heads"),
    "d_head": ("head_dim", "d_kv"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim"),
}

# ---------------------------------------------------------------------------------------------------- rope
ROPE_MODELS = ("llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
BASES = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), 10_000.0)  # where config.json says none
OWN_BASES = dict.fromkeys(  # those of models that no pattern with rope knows
    ("codegen", "esm", "falcon", "gpt_neox", "gpt_neox_japanese", "gptj", "phi", "roformer", "stablelm"), 10_000.0
)
FRACTIONS = {"gpt_neox": 0.25, "stablelm": 0.25, "phi": 0.5, "persimmon": 0.5, "nemotron": 0.5, "glm": 0.5, "glm4": 0.5}
WIDTHS = {"gptj": 64, "codegen": 64}  # columns of each head that are turned, where no key says it

_HALF = """
    dbrx esm eurobert exaone4 falcon gemma gemma2 gemma3 gemma3_text gpt_neox gpt_neox_japanese gpt_oss granite
    internlm internlm2 modernbert nemotron olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen qwen3_next smollm3
    stablelm starcoder2
"""
_INTERLEAVED = "chatglm codegen cohere cohere2 deepseek_v2 deepseek_v3 glm glm4 gptj llama4 llama4_text roformer"
STYLES = dict.fromkeys(_HALF.split(), "half") | dict.fromkeys(_INTERLEAVED.split(), "interleaved")

TYPE_KEYS = ("position_embedding_type", "position_embeddings_type", "position_encoding_type", "pos_emb_type")
PLAIN_TYPES = ("absolute", "learned", "learned_absolute", "sinusoidal", "none")  # positions before attention

# ---------------------------------------------------------------------------------------- what else they do
BUFFERS = ["bias", "masked_bias", "rotary_emb.inv_freq"]  # kept beside weights by models of the kind of GPT
PER_HEAD = ("bloom", "gpt_neox", "gpt_neox_japanese", "persimmon")  # q, k, v of each head beside each other
_ORDERS = {
    **dict.fromkeys(PER_HEAD, "heads"),
    **dict.fromkeys(("internlm2", "RefinedWeb"), "groups"),
    **dict.fromkeys(("gpt2", "imagegpt", "openai-gpt", "decision_transformer", "jais", "qwen", "baichuan"), "blocks"),
    **dict.fromkeys(("mpt", "dbrx", "phi3", "nomic_bert", "modernbert", "blip_vision_model"), "blocks"),
    "codegen": "others",  # four parts, each with its queries, values and keys
}
ORDER_FLAGS = {  # whose order is blocks where the first key is True, and heads where it is False
    "chatglm": ("multi_query_attention",),
    "falcon": ("multi_query", "new_decoder_architecture"),
    "gpt_bigcode": ("multi_query",),
    "RefinedWebModel": ("multi_query",),
}
_MULTI_QUERY = ("falcon", "gpt_bigcode")  # where no key says it
_PLUS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_next")
_WHOLE_NORMS = ("olmo2", "olmo3", "olmoe")
_ALWAYS = {
    "gpt_oss": "its sinks are sinks=state[prefix + '.sinks'] of each call",
    "qwen3_next": "q_proj holds each head's queries and then its gate: take them apart, pass the queries alone, and "
    "multiply what the heads give by sigmoid(gate) before o_proj",
    "cohere2": "its layers of full_attention have no rope: transform=transforms.compose() there",
    "exaone4": "its layers of full_attention have no rope where others slide: transform=transforms.compose() there",
    "smollm3": "its layers in no_rope_layers have no rope: transform=transforms.compose() there",
    "llama4": "its norms come after rope, and its layers in no_rope_layers have none",
    "llama4_text": "its norms come after rope, and its layers in no_rope_layers have none",
}
_TWO_AXES = (
    "dinov3_vit",
    "pixtral",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen2_vl_vision",
    "qwen2_5_vl_vision",
    "qwen3_vl_vision",
    "vjepa2",
)
_ALWAYS |= dict.fromkeys(_TWO_AXES, "its rope goes by rows and columns of pictures: pass a transform of your own")


def style_of(config: Mapping[str, Any], rope: str | None) -> str:
    """The style of a model's rope by its type, or that of its pattern; of a type that is not known none is guessed."""
    kind = config.get("model_type")
    guess = (rope or "half") if kind is None or kind in ROPE_MODELS else "..."
    return (STYLES.get(kind) if isinstance(kind, str) else None) or guess


def order_of_qkv(config: Mapping[str, Any]) -> str | None:
    """In which order a model's one array of queries, keys and values holds them; None, if unknown.

    "blocks", "heads" or "groups", as ``fused`` of a pattern; "others" is one that has no name there.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return None
    if kind == "falcon" and config.get("new_decoder_architecture") is True:
        return "groups"
    if kind in ORDER_FLAGS:
        return "blocks" if _says_blocks(config, kind) else "heads"
    return _ORDERS.get(kind)


def _says_blocks(config: Mapping[str, Any], kind: str) -> bool:
    said = config.get(ORDER_FLAGS[kind][0])
    return kind in _MULTI_QUERY if said is None else said is True


def has_one_key_head(config: Mapping[str, Any]) -> bool:
    """Whether a configuration says that all heads share one of keys, in an array of all three."""
    kind = config.get("model_type")
    return kind in ("falcon", "gpt_bigcode", "RefinedWebModel") and order_of_qkv(config) == "blocks"


def asides(config: Mapping[str, Any], norms: Mapping[str, str]) -> list[str]:
    """What a model's attention does that no layer made of its names does, each with what to do about it.

    ``norms`` are the names of the norms of queries and keys, where the state holds them.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return []
    names = " and ".join(norms.values())
    said = [f"add 1 to {names}, as its norms multiply by 1 + w"] if norms and kind in _PLUS_ONE else []
    if norms and kind in _WHOLE_NORMS:
        own = "leave them out of the state, and pass a transform of your own that has them"
        said.append(f"{names} are norms over all heads together: {own}")
    return said + ([_ALWAYS[kind]] if kind in _ALWAYS else [])


# ----------------------------------------------------------------------------------------------- who sees whom
_DECODERS = """
    biogpt bloom codegen cohere cohere2 ctrl dbrx decision_transformer deepseek_v2 deepseek_v3 exaone4 falcon falcon_h1
    gemma gemma2 gemma3 gemma3_text glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite
    imagegpt internlm internlm2 jais llama llama4_text ministral mistral mixtral mpt nemotron olmo olmo2 olmo3 olmoe
    openai-gpt opt persimmon phi phi3 phimoe qwen qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next smollm3 stablelm starcoder2
    trocr xglm
    clip_text_model clipseg_text_model groupvit_text_model owlv2_text_model owlvit_text_model xclip_text_model
"""
_CLIPS = ("clip", "clipseg", "groupvit", "owlv2", "owlvit", "xclip")  # of whose two towers the text's looks back
_TWO_STACKS = """
    t5 mt5 umt5 switch_transformers pop2piano longt5 bart bigbird_pegasus blenderbot blenderbot-small fsmt led m2m_100
    marian mbart mvp nllb-moe pegasus pegasus_x plbart prophetnet speech_to_text whisper
"""


def looks_back(config: Mapping[str, Any], parts: Collection[str]) -> str | None:
    """What a configuration says of tokens that see no later one; None where it says no such thing.

    ``parts`` are those of the layer's prefix, which say which of a model's stacks it stands in.
    """
    kind = config.get("model_type")
    known = kind[:60] if isinstance(kind, str) else ""
    if config.get("is_causal") is False or config.get("use_bidirectional_attention") is True:
        return None
    if config.get("is_encoder_decoder") is True or known in _TWO_STACKS.split():
        return f"model_type {known}, the tokens of whose decoder" if "decoder" in parts else None
    if known in _CLIPS:
        return f"model_type {known}, the tokens of whose text" if "text_model" in parts else None
    if known in _DECODERS.split():
        return f"model_type {known}, whose tokens"
    return f"is_decoder, and model_type {known}, whose tokens then" if config.get("is_decoder") is True else None


# ---------------------------------------------------------------------------------------------- other names
_ALIASES = {
    "llama": "mistral mixtral ministral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 granite cohere olmo olmo2 "
    "smollm3 stablelm starcoder2 llama2 llama3 tinyllama",
    "bert": "roberta xlm-roberta camembert electra esm ernie layoutlm minilm",
    "bart": "opt clip whisper wav2vec2 hubert mbart marian pegasus siglip m2m_100 blenderbot xglm",
    "vit": "deit dinov2 vit_mae yolos dpt",
    "gpt2": "gpt gpt-2 imagegpt openai-gpt distilgpt2",
    "t5": "mt5 umt5 flan-t5 switch_transformers",
    "fused": "timm",
    "torch": "pytorch multiheadattention nn.multiheadattention",
}
_PATTERN_OF = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_NEOX = {"w_qkv": "query_key_value.weight", "w_o": "dense.weight"}
_NEOX |= {"b_qkv": "query_key_value.bias", "b_o": "dense.bias", "fused": "heads"}
_GPTJ = {f"w_{key}": f"{name}_proj.weight" for key, name in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out"))}
_OWN: dict[str, dict[str, Any]] = {
    "bloom": _NEOX,
    "gpt_neox": _NEOX | {"rope": "half", "beside": BUFFERS},
    "gptj": _GPTJ | {"rope": "interleaved", "beside": BUFFERS[:2]},
}


def alias_of(name: str) -> str | dict[str, Any] | None:
    """The pattern whose names a model of this name has, or a dictionary of its names; None where it is not known."""
    known = name.lower()
    known = {"neox": "gpt_neox", "gpt-neox": "gpt_neox", "gptneox": "gpt_neox", "gpt-j": "gptj"}.get(known, known)
    return dict(_OWN[known]) if known in _OWN else _PATTERN_OF.get(known)
