"""Which models have positions inside attention, and whether a layer made of their names would have them: tables.

Knows the types and keys of configurations; knows no arrays, and not how positions are computed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from headwise.core.shapes import Faults, shown
from headwise.layers.families import PLAIN_TYPES, ROPE_MODELS, STYLES, TYPE_KEYS
from headwise.layers.patterns import OWN, Pattern, printed
from headwise.layers.rope_configs import OWN_KEYS, rope_in_words

ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
_READ = (*ROPE_KEYS, "partial_rotary_factor", "use_scaled_rope")  # what a pattern with rope makes of a configuration
_ROPE_FLAGS = ("rotary", "use_rotary_embedding", "use_rope")  # that say no more than that there is rope
_ROPE_TYPES = ("rotary", "rope")
_STYLE_FLAGS = ("rope_interleaved", "rope_interleave", "rotary_emb_interleaved")

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
_ARCHITECTURES = ("rope", "eva02", "eva_", "dinov3", "_pe_")  # parts of timm's names of models with rope


class Lack(NamedTuple):
    """One thing that says positions inside attention which a pattern does not have."""

    key: str
    value: Any
    what: str  # rope, alibi, ...; "" where of the model's type nothing is known


def lacking(config: Mapping[str, Any], name: str, pattern: Pattern) -> list[Lack]:
    """What a configuration says of positions inside attention that a pattern does not have: keys, then the type."""
    own = name == OWN
    found = [Lack(*said) for said in _said(config) if not _applied(config, *said, pattern, own)]
    kind = config.get("model_type")
    if pattern.rope is not None or kind is None or (isinstance(kind, str) and kind in _PLAIN_MODELS):
        return found  # of a pattern with rope the types of models are looked at with their norms and scale
    has = _HAS.get(kind) if isinstance(kind, str) else None
    if has is not None:
        found.append(Lack("model_type", kind, has))
    elif name not in ("torch", OWN):  # a module without positions, whatever it stands in; a caller's own description
        found.append(Lack("model_type", kind, ""))
    return found


def as_configured(pattern: Pattern, name: str, config: Mapping[str, Any] | None) -> Pattern:
    """A pattern without its rope, where models of this type have the names and no positions in their attention.

    ViT's is one: its state in memory has Llama's names.
    """
    kind = (config or {}).get("model_type")
    plain = isinstance(kind, str) and kind in _PLAIN_MODELS
    return pattern._replace(rope=None) if plain and pattern.rope is not None and name != OWN else pattern


def check_positions(faults: Faults, config: Mapping[str, Any], name: str, pattern: Pattern) -> None:
    """Note the first thing that says positions inside attention which this pattern does not have.

    For a layer to which no transform is given: one that is given is its caller's word.
    """
    lack = next(iter(lacking(config, name, pattern)), None)
    if lack is None:
        return
    argument, got = f"config['{printed(lack.key)}']", shown(lack.value)
    if lack.what:
        _refuse(faults, config, argument, lack, name, pattern)
        return
    expected = "one whose attention is known to have no positions, as bert, gpt2 or vit"
    faults.value(argument, expected, got, "pass transform=transforms.compose() where it has none")


def _said(config: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Keys that say positions inside attention, their values, and what they say."""
    inner = config.get("attn_config")  # of MPT
    found = []
    for key, value in [*config.items(), *(inner.items() if isinstance(inner, Mapping) else ())]:
        if not isinstance(key, str) or not _means(value):
            continue
        if key in TYPE_KEYS:
            if not (isinstance(value, str) and value in PLAIN_TYPES):
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


def _applied(config: Mapping[str, Any], key: str, value: Any, what: str, pattern: Pattern, own: bool) -> bool:
    """Whether a layer has what a key says, or its models are known to pass the key over."""
    kind = config.get("model_type")
    if key in ROPE_KEYS and isinstance(kind, str) and kind in _PLAIN_MODELS:
        return True
    if what == "relative positions" and key.startswith("relative_attention_"):
        return "SelfAttention" in pattern.folders or kind in _T5_MODELS  # given as bias= in each call
    if pattern.rope is None:
        return False
    return key in _READ or (own and _of_own_rope(key, value, pattern.rope))


def _of_own_rope(key: str, value: Any, style: str) -> bool:
    """Whether rope that a caller described goes by a key, or the key says no more than the description."""
    if key in _STYLE_FLAGS:
        return style == "interleaved"  # what says False is passed over
    flags = (key in _ROPE_FLAGS and value is True) or (key in TYPE_KEYS and value in _ROPE_TYPES)
    return key in OWN_KEYS or flags


def styles_in_words(config: Mapping[str, Any]) -> str:
    """The order of the columns of a model's rope, or both where its type does not say which."""
    kind = config.get("model_type")
    known = STYLES.get(kind, "half" if kind in ROPE_MODELS else None) if isinstance(kind, str) else None
    return f"'{known}'" if known else "'half' or 'interleaved'"


def _refuse(faults: Faults, config: Mapping[str, Any], argument: str, lack: Lack, name: str, pattern: Pattern) -> None:
    what = lack.what
    remedy, expected = "pass transform= (transforms.compose() is none)", f"none, as the pattern '{name}' has no {what}"
    if what == "rope" and pattern.rope is not None:
        expected = f"none, as the rope of the pattern '{name}' does not go by it"
        remedy = f"pass {rope_in_words(config, pattern.rope)} or another (transforms.compose() is none)"
    elif what == "rope":
        styles = styles_in_words(config)
        own = f"'rope': {styles} in the pattern"
        own = own if name == OWN else f"pattern=PATTERNS['{name}']._replace(rope={styles.replace(' or', ') or', 1)}"
        own += "" if name == OWN or " or " in styles else ")"
        turned = rope_in_words(config, styles.split("'")[1])
        remedy += f" or {own}, which reads config; by hand {turned}"
    else:
        remedy += f", and {'bias=headwise.alibi(...)' if what == 'alibi' else 'the positions as bias='} in each call"
    got = f"{shown(lack.value)}, which has it" if lack.key == "model_type" else shown(lack.value)
    faults.value(argument, expected, got, remedy)
