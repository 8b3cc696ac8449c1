"""Attention for NumPy: a definition you can read, an engine that is fast, every rule written down and tested."""

from headwise.core import frequencies, masks
from headwise.core.attention import AttentionSteps, attention_steps, scaled_dot_product_attention
from headwise.core.engine import attention
from headwise.core.gradients import AttentionGradients, attention_vjp, softmax_vjp
from headwise.core.masks import Mask, causal_mask
from headwise.core.plan import AttentionPlan, attention_plan
from headwise.core.positions import alibi, alibi_slopes
from headwise.core.relative_positions import relative_position_bias, relative_position_bias_vjp
from headwise.core.rope import rope, rope_permutation, rope_vjp
from headwise.core.softmax import logsumexp, merge_attention, softmax
from headwise.core.varlen import attention_varlen, attention_varlen_vjp
from headwise.layers import transforms, weights
from headwise.layers.attention_layer import MultiHeadAttention, MultiHeadGradients
from headwise.layers.cache import KVCache
from headwise.layers.multihead import MultiHeadSelfAttention, multi_head_attention, multi_head_attention_vjp

__version__ = "0.1.0"

__all__ = [
    "AttentionGradients",
    "AttentionPlan",
    "AttentionSteps",
    "KVCache",
    "Mask",
    "MultiHeadAttention",
    "MultiHeadGradients",
    "MultiHeadSelfAttention",
    "alibi",
    "alibi_slopes",
    "attention",
    "attention_plan",
    "attention_steps",
    "attention_varlen",
    "attention_varlen_vjp",
    "attention_vjp",
    "causal_mask",
    "frequencies",
    "logsumexp",
    "masks",
    "merge_attention",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "relative_position_bias",
    "relative_position_bias_vjp",
    "rope",
    "rope_permutation",
    "rope_vjp",
    "scaled_dot_product_attention",
    "softmax",
    "softmax_vjp",
    "transforms",
    "weights",
]
