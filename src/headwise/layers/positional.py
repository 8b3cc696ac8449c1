"""Which models have positions inside attention, and whether a layer made of their names would have them: tables.

Knows the types and keys of configurations; knows no arrays, and not how positions are computed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headwise.core.shapes import Faults, shown
from headwise.layers.patterns import OWN, Pattern, printed

ROPE_MODELS = ("llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
_READ = (*ROPE_KEYS, "partial_rotary_factor", "use_scaled_rope")  # what a pattern with rope makes of a configuration

_PLAIN = """
    albert bert bert-generation camembert data2vec-text distilbert electra ernie esm flaubert ibert layoutlm lxmert
    markuplm megatron-bert mobilebert rembert roberta roberta-prelayernorm roc_bert splinter tapas visual_bert xlm
    xlm-roberta xlm-roberta-xl xmod
    biogpt decision_transformer gpt2 gpt_bigcode gpt_neo imagegpt openai-gpt opt xglm
    bart blenderbot blenderbot-small fsmt m2m_100 marian mbart mvp nllb-moe pegasus plbart speech_to_text trocr whisper
    audio-spectrogram-transformer data2vec-audio hubert sew unispeech unispeech-sat wav2vec2
    deit dinov2 dinov2_with_registers dpt ijepa mgp-str segformer timesformer videomae vilt vit vit_hybrid vit_mae
    vit_msn vitpose_backbone vivit yolos
    align_text_model altclip altclip_text_model altclip_vision_model blip blip_2_qformer blip_2_vision_model
    blip_text_model blip_vision_model bridgetower_text_model chinese_clip chinese_clip_text_model
    chinese_clip_vision_model clap_text_model clip clip_text_model clip_vision_model clipseg clipseg_text_model
    clipseg_vision_model flava flava_image_model flava_multimodal_model flava_text_model git git_vision_model groupvit
    groupvit_text_model groupvit_vision_model instructblip_qformer instructblip_vision_model siglip siglip_text_model
    siglip_vision_model xclip xclip_text_model xclip_vision_model
"""
_ROPE = """
    chatglm codegen cohere cohere2 dbrx deepseek_v2 deepseek_v3 dinov3_vit esmc eurobert exaone4 falcon falcon_h1
    gemma gemma2 gemma3 gemma3_text glm glm4 gpt_neox gpt_neox_japanese gpt_oss gptj granite gte internlm internlm2
    jina_embeddings_v3 llama4 llama4_text modernbert modernbert-decoder nemotron nomic_bert olmo olmo2 olmo3 olmoe
    persimmon phi phi3 phimoe pixtral qwen qwen2_5_vl qwen2_5_vl_text qwen2_5_vl_vision qwen2_vl qwen2_vl_text
    qwen2_vl_vision qwen3_next qwen3_vl qwen3_vl_text qwen3_vl_vision recurrent_gemma roformer smollm3 stablelm
    starcoder2 vjepa2
"""
_RELATIVE = """
    beit bros clap_audio_model data2vec-vision deberta deberta-v2 donut-swin funnel layoutlmv2 layoutlmv3 longt5
    maskformer-swin mpnet nezha sam_vision_model speecht5 swin swin2sr swinv2 transfo-xl udop vitdet
    wav2vec2-bert wav2vec2-conformer wavlm xlnet
"""
_T5_MODELS = ("t5", "mt5", "umt5", "switch_transformers", "pop2piano")  # a call is given theirs, as bias=
_PLAIN_MODELS = {*_PLAIN.split(), *_T5_MODELS}  # positions are added to the tokens, before attention
_HAS = {  # what the attention of other models has
    **dict.fromkeys((*ROPE_MODELS, *_ROPE.split()), "rope"),
    **dict.fromkeys(("bloom", "gpt_refact", "jais", "mpt"), "alibi"),
    **dict.fromkeys(_RELATIVE.split(), "relative positions"),
}
_WORDS = {  # words of a key that say positions inside attention
    "rope": "rope",
    "mrope": "rope",
    "rotary": "rope",
    "alibi": "alibi",
    "relative": "relative positions",
    "rel": "relative positions",
}
_TYPE_KEYS = ("position_embedding_type", "position_embeddings_type", "position_encoding_type", "pos_emb_type")
_PLAIN_TYPES = ("absolute", "learned", "learned_absolute", "sinusoidal", "none")
_ARCHITECTURES = ("rope", "eva02", "eva_", "dinov3", "_pe_")  # parts of timm's names of models with rope


def check_positions(faults: Faults, config: Mapping[str, Any], name: str, pattern: Pattern) -> None:
    """Note the first thing that says positions inside attention which this pattern does not have.

    For a layer to which no transform is given: one that is given is its caller's word.
    """
    for key, value, what in _said(config):
        if not _applied(config, key, what, pattern):
            _refuse(faults, f"config['{printed(key)}']", shown(value), what, name, pattern)
            return
    kind = config.get("model_type")
    if pattern.rope is not None or kind is None or (isinstance(kind, str) and kind in _PLAIN_MODELS):
        return  # of a pattern with rope the types of models are looked at with their norms and scale
    has = _HAS.get(kind) if isinstance(kind, str) else None
    if has is not None:
        _refuse(faults, "config['model_type']", f"{shown(kind)}, which has it", has, name, pattern)
    elif name not in ("torch", OWN):  # a module without positions, whatever it stands in; a caller's own description
        expected = "one whose attention is known to have no positions, as bert, gpt2 or vit"
        remedy = "pass transform=transforms.compose() where it has none"
        faults.value("config['model_type']", expected, shown(kind), remedy)


def _said(config: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Keys that say positions inside attention, their values, and what they say."""
    inner = config.get("attn_config")  # of MPT
    found = []
    for key, value in [*config.items(), *(inner.items() if isinstance(inner, Mapping) else ())]:
        if not isinstance(key, str) or not _means(value):
            continue
        if key in _TYPE_KEYS:
            if not (isinstance(value, str) and value in _PLAIN_TYPES):
                found.append((key, value, _of_type(value)))
        elif key == "architecture" and isinstance(value, str):
            found += [(key, value, "rope")] if any(part in value for part in _ARCHITECTURES) else []
        else:
            found += [(key, value, _WORDS[word]) for word in re.findall("[a-z]+", key.lower()) if word in _WORDS][:1]
    return found


def _means(value: Any) -> bool:
    """Whether a value says something: none of None, False, 0, and what is empty."""
    return bool(value) if value is None or isinstance(value, str | int | float | list | tuple | Mapping) else True


def _of_type(value: Any) -> str:
    text = str(value).lower()
    return next((what for word, what in _WORDS.items() if word in text), "positions of that type")


def _applied(config: Mapping[str, Any], key: str, what: str, pattern: Pattern) -> bool:
    """Whether a layer has what a key says, or its models are known to pass the key over."""
    kind = config.get("model_type")
    if key in ROPE_KEYS and isinstance(kind, str) and kind in _PLAIN_MODELS:
        return True
    if what == "relative positions" and key.startswith("relative_attention_"):
        return "SelfAttention" in pattern.folders or kind in _T5_MODELS  # given as bias= in each call
    return key in _READ and pattern.rope is not None


def _refuse(faults: Faults, argument: str, got: str, what: str, name: str, pattern: Pattern) -> None:
    remedy, expected = "pass transform= (transforms.compose() is none)", f"none, as the pattern '{name}' has no {what}"
    if what == "rope" and pattern.rope is not None:
        expected = f"none, as the rope of the pattern '{name}' does not go by it"
    elif what == "rope":
        own = f"pattern=PATTERNS['{name}']._replace(rope='half') or 'interleaved'"
        own = "'rope': 'half' or 'interleaved' in the pattern" if name == OWN else own
        remedy += f" or {own}"
    else:
        remedy += f", and {'bias=headwise.alibi(...)' if what == 'alibi' else 'the positions as bias='} in each call"
    faults.value(argument, expected, got, remedy)
