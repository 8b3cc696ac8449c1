"""In which order one array holds queries, keys and values: by the model's type, with every pattern that has w_qkv."""

import numpy as np
import pytest
from states import attended, drawn, heads_of

from headwise import transforms, weights

H, G, WIDE, D = 6, 2, 3, 18
FUSED = {"w_qkv": "wqkv.weight", "b_qkv": "wqkv.bias", "w_o": "wo.weight"}
X = np.random.default_rng(2).standard_normal((5, D))
PLAIN = transforms.compose()


def state_of(n_kv_heads=G, dtype=np.float64):
    whole = (H + 2 * n_kv_heads) * WIDE
    return drawn(1, {"a.wqkv.weight": (whole, D), "a.wqkv.bias": (whole,), "a.wo.weight": (D, H * WIDE)}, dtype)


def as_internlm2(state, n_kv_heads):
    """Its own steps: one product, viewed as (n, G, H/G + 2, d_head); the last two are key and value."""
    fused = X @ state["a.wqkv.weight"].T + state["a.wqkv.bias"]
    fused = fused.reshape(len(X), n_kv_heads, -1, WIDE)
    q, k, v = (part.reshape(len(X), -1) for part in (fused[:, :, :-2], fused[:, :, -2], fused[:, :, -1]))
    return attended(heads_of(q, H), heads_of(k, n_kv_heads), heads_of(v, n_kv_heads)) @ state["a.wo.weight"].T


@pytest.mark.parametrize("n_kv_heads", [1, G, 3, H])
def test_queries_of_each_key_head_beside_its_key_and_value(n_kv_heads):
    state = state_of(n_kv_heads)
    layer = weights.from_state_dict(state, "a", n_heads=H, pattern=FUSED | {"fused": "groups"})
    assert layer.n_kv_heads == n_kv_heads
    np.testing.assert_allclose(layer(X), as_internlm2(state, n_kv_heads), rtol=1e-12, atol=1e-12)
    blocks = weights.from_state_dict(state, "a", n_heads=H, pattern=FUSED)
    assert (np.abs(blocks(X) - layer(X)).max() > 1e-3) == (n_kv_heads > 1)


@pytest.mark.parametrize("layout", ["linear", "conv1d"])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_groups_go_back_equal_to_the_bit(layout, dtype):
    state = state_of(dtype=dtype)
    state = {name: x.T if layout == "conv1d" else x for name, x in state.items()}
    own = FUSED | {"fused": "groups", "layout": layout}
    back = weights.to_state_dict(weights.from_state_dict(state, "a", n_heads=H, pattern=own), own, "a")
    assert set(back) == set(state)
    assert all((back[name].dtype, back[name].tobytes()) == (x.dtype, x.tobytes()) for name, x in state.items())


def test_groups_are_of_an_array_that_holds_all_three():
    own = {f"w_{key}": f"{key}.weight" for key in "qkvo"} | {"fused": "groups"}
    with pytest.raises(ValueError, match="a name for w_qkv, which fused='groups' is said of, got none"):
        weights.from_state_dict(state_of(), "a", n_heads=H, pattern=own)


# ------------------------------------------------------------------------------------------------ what models hold
OLD = {"new_decoder_architecture": False}
ORDERS = [  # a type, what else its configuration says, key heads, and the order
    ("bloom", {}, H, "heads"),
    ("gpt_neox", {}, H, "heads"),
    ("gpt_neox_japanese", {}, H, "heads"),
    ("persimmon", {}, H, "heads"),
    ("gpt_bigcode", {"multi_query": False}, H, "heads"),
    ("falcon", OLD | {"multi_query": False}, H, "heads"),
    ("RefinedWebModel", {}, H, "heads"),
    ("chatglm", {}, H, "heads"),
    ("falcon", {"new_decoder_architecture": True, "multi_query": True}, G, "groups"),
    ("internlm2", {}, G, "groups"),
    ("RefinedWeb", {}, G, "groups"),
    ("gpt_bigcode", {}, 1, "blocks"),
    ("falcon", {}, 1, "blocks"),
    ("falcon", OLD | {"multi_query": True}, 1, "blocks"),
    ("chatglm", {"multi_query_attention": True}, G, "blocks"),
    ("phi3", {}, G, "blocks"),
    ("gpt2", {}, H, "blocks"),
    ("mpt", {}, H, "blocks"),
]


def made(model, more, n_kv_heads, fused, pattern=None):
    config = {"model_type": model, "num_attention_heads": H} | more
    own = weights.PATTERNS["torch"]._replace(names=FUSED, optional=(), grouped=True, fused=fused)
    return weights.from_state_dict(state_of(n_kv_heads), "a", config=config, pattern=pattern or own, transform=PLAIN)


@pytest.mark.parametrize(("model", "more", "n_kv_heads", "order"), ORDERS)
def test_the_order_of_a_type_is_held(model, more, n_kv_heads, order):
    assert made(model, more, n_kv_heads, order).n_kv_heads == n_kv_heads
    same = {order} if order == "blocks" else {"heads", "groups"}  # of ungrouped heads these two are one
    for other in same if n_kv_heads == H else ():
        np.testing.assert_array_equal(made(model, more, H, other)(X), made(model, more, H, order)(X))
    for other in {"blocks", "heads", "groups"} - same:
        if other == "heads" and n_kv_heads < H:
            continue  # refused by the shape
        with pytest.raises(ValueError, match=r"config\['model_type'\]: expected one whose w_qkv holds") as caught:
            made(model, more, n_kv_heads, other)
        assert f"'{order}'" in str(caught.value).partition("; ")[2]


@pytest.mark.parametrize("name", ["gpt2", "fused"])
@pytest.mark.parametrize("model", ["gpt_neox", "bloom", "internlm2"])
def test_the_order_is_held_of_named_patterns_too(name, model):
    pattern = weights.PATTERNS[name]
    turn = pattern.layout == "conv1d"
    names = {role: f"a.{pattern.names[role]}" for role in ("w_qkv", "b_qkv", "w_o", "b_o")}
    widths = {"w_qkv": (3 * D, D), "b_qkv": (3 * D,), "w_o": (D, D), "b_o": (D,)}
    state = drawn(3, {names[role]: shape[::-1] if turn else shape for role, shape in widths.items()})
    config = {"model_type": model, "num_attention_heads": H}
    with pytest.raises(ValueError, match="1 thing does not fit") as caught:
        weights.from_state_dict(state, "a", config=config, transform=PLAIN)
    advice = str(caught.value).partition("; pattern=")[2].partition(" says that")[0]
    own = eval(advice, {"PATTERNS": weights.PATTERNS})
    layer = weights.from_state_dict(state, "a", config=config, transform=PLAIN, pattern=own)
    blocks = weights.from_state_dict(state, "a", n_heads=H)
    assert np.abs(layer(X) - blocks(X)).max() > 1e-3


def test_the_module_of_pytorch_has_one_order():
    state = drawn(3, {"a.in_proj_weight": (3 * D, D), "a.out_proj.weight": (D, D)})
    config = {"model_type": "gpt_neox", "num_attention_heads": H}
    assert weights.from_state_dict(state, "a", config=config, transform=PLAIN).n_heads == H


@pytest.mark.parametrize("fused", ["blocks", "heads", "groups"])
def test_an_order_that_has_no_name_is_refused(fused):
    with pytest.raises(ValueError, match=r"got 'codegen'; take it apart into w_q, w_k and w_v in the state, as"):
        made("codegen", {}, H, fused)


def test_a_flag_of_the_order_is_true_or_false():
    with pytest.raises(TypeError, match=r"config\['multi_query'\]: expected True or False, got str 'no'"):
        made("gpt_bigcode", {"multi_query": "no"}, H, "heads")


@pytest.mark.parametrize(
    ("model", "more"),
    [("gpt_bigcode", {}), ("falcon", {"multi_query": True}), ("RefinedWebModel", {"multi_query": True})],
)
def test_one_head_of_keys_that_is_said_and_not_there(model, more):
    with pytest.raises(ValueError, match=rf"n_kv_heads: expected 1, as config\['multi_query'\] says or means, got {H}"):
        made(model, more, H, "blocks")
