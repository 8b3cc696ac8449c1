"""What is graded: its functions are found, called as they ask to be, and their results taken as they are meant."""

import contextlib
import functools
import gc
import io
import json
import os
import random
import re
import sys
import threading
import types
import warnings
from typing import NamedTuple

import numpy as np
import pytest

from headwise.check import returned
from headwise.check.bind import UnfitError
from headwise.check.calls import FUNCTIONS, ROLES, Call
from headwise.check.names import FUNCTION_NAMES, ROLE_NAMES, TABLES, WEIGHT_PATHS
from headwise.check.process import Limits
from headwise.check.targets import MOST_SOURCE, subject
from headwise.files import FileError

RNG = np.random.default_rng(0)
Q, K, V = (RNG.normal(size=(2, 3)) for _ in range(3))
MASK = np.tril(np.ones((2, 2), bool))
X = RNG.normal(size=(3, 4))
W = {f"w_{letter}": RNG.normal(size=(4, 4)) for letter in "qkvo"}
MASKED = {"q": Q, "k": K, "v": V, "mask": MASK}
MULTI = {"x": X, **W, "n_heads": 2, "causal": False}
CAUSAL = {**MULTI, "causal": True}
LAYER = {"d_model": 4, "n_heads": 2, "seed": 3, "x": X, "causal": False}


def attended(q, k, v, mask=None):
    return q + 10 * k + 100 * v + (0 if mask is None else mask.sum())


def called(function, role, **args):
    """What comes of one call of an object that stands for a role."""
    (result,) = subject({role: function}).run([Call(role, args)]).results
    return result


# ------------------------------------------------------------------------------------------- names
def test_the_tables_can_be_sent_and_hold_every_function_and_role():
    assert json.loads(json.dumps(TABLES)) is not None
    assert set(FUNCTION_NAMES) == set(FUNCTIONS)
    assert {role for roles in ROLES.values() for role in roles} <= set(ROLE_NAMES)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_name_of_a_parameter_stands_for_two_roles(function):
    roles = TABLES["roles"][function]
    names = [name for role in roles for name in set(roles[role])]
    assert not {name for name in names if names.count(name) > 1}


def test_no_path_to_a_weight_stands_for_two():
    paths = [path for role in WEIGHT_PATHS for path, _ in TABLES["weights"][role]]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("names", "function", "found"),
    [
        (["sdpa", "attention"], "attention", "attention"),
        (["attention", "Scaled_DotProductAttention"], "attention", "Scaled_DotProductAttention"),
        (["_my_softmax"], "softmax", "_my_softmax"),
        (["stable_softmax", "softmax"], "softmax", "softmax"),
        (["subsequent_mask"], "causal_mask", "subsequent_mask"),
        (["mha"], "multi_head", "mha"),
    ],
)  # fmt: skip
def test_the_first_name_of_the_table_wins(names, function, found):
    module = types.ModuleType("lesson")
    for name in names:
        setattr(module, name, lambda x: x)
    assert subject(module).found == {function: found}


def test_a_function_is_never_a_class_and_a_class_never_a_function():
    module = types.ModuleType("lesson")
    module.MultiHeadAttention = lambda x: x
    module.softmax = type("softmax", (), {})
    assert subject(module).found == {"multi_head": "MultiHeadAttention"}


def test_what_a_module_defines_itself_comes_before_what_it_imports(tmp_path):
    path = tmp_path / "it.py"
    path.write_text(
        "from operator import add as scaled_dot_product_attention\nfrom operator import neg as softmax\n"
        "def attention(q, k, v):\n    return q\n"
    )
    assert subject(path).found == {"attention": "attention", "softmax": "softmax"}


def test_self_attention_is_attention_only_of_q_k_and_v():
    module = types.ModuleType("lesson")
    module.self_attention = lambda x, w_q, w_k, w_v: x
    assert subject(module).found == {}
    module.self_attention = lambda queries, keys, values: queries
    assert subject(module).found == {"attention": "self_attention"}


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("softmax", "calc_softmax calculate_softmax softmax_func softmax_forward row_wise_softmax"),
        ("attention", "attn my_attn attn_fn calc_attention dot_attention attention_fn compute_attn"),
        ("causal_mask", "calc_causal_mask causal_mask_fn mask_causal future_mask get_mask"),
        ("multi_head", "my_mha multi_head_attn multi_head_attention_fn calc_multi_head_attention multi_head_forward"),
        ("layer", "MultiHeadAttn MyMHA MHALayer MyMultiHead MyAttention"),
    ],
)
def test_usual_names_are_known(function, names):
    for name in names.split():
        assert subject({name: Flat if function == "layer" else abs}).found == {function: name}


def test_what_is_looked_for_is_said():
    found = subject({"softmax": abs}, functions={"layer": "Mine"})
    assert found.missing("attention").startswith("a function named scaled_dot_product_attention, attention, sdpa, ")
    assert re.search(r" or one of \d+ other names$", found.missing("attention"))
    assert found.missing("layer") == "a class named Mine"


# ------------------------------------------------------------------------------------------- binding
class Callable:
    def __call__(self, query, key, value):
        return attended(query, key, value)


class Holder:
    @staticmethod
    def static(q, k, v):
        return attended(q, k, v)

    @classmethod
    def of_class(cls, q, k, v):
        return attended(q, k, v)

    def method(self, q, k, v):
        return attended(q, k, v)


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: attended(q, k, v),
        lambda v, k, q: attended(q, k, v),
        lambda Value, Keys, Q: attended(Q, Keys, Value),
        lambda k, q, v, scale=1, mask=None: attended(q, k, v),
        lambda *, value, key, query: attended(query, key, value),
        lambda v, /, q, k: attended(q, k, v),
        lambda a, b, c: attended(a, b, c),
        lambda a, b, c, d=None, e=None: attended(a, b, c),
        lambda a, b, c, d: attended(a, b, c, d),
        lambda *args: attended(*args),
        lambda **kwargs: attended(**kwargs),
        lambda *args, **kwargs: attended(*args, **kwargs),
        lambda q, k, v, d_k: attended(q, k, v) if d_k == 3 else None,
        lambda q, k, v, mask, return_weights: attended(q, k, v) if mask is None and return_weights else None,
        functools.partial(lambda scale, q, k, v: attended(q, k, v), 2),
        functools.partial(attended, mask=None),
        wrapped(attended),
        Callable(),
        Holder.static,
        Holder.of_class,
        Holder().method,
        vars(Holder)["static"],
    ],
)  # fmt: skip
def test_attention_is_called_as_it_asks_to_be(function):
    result = called(function, "attention", q=Q, k=K, v=V)
    assert result.error == ""
    np.testing.assert_array_equal(result.out, attended(Q, K, V))
    assert result.weights is None


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v, attention_mask=None: attended(q, k, v, attention_mask),
        lambda mask, q, k, v: attended(q, k, v, mask),
        lambda q, k, v, *rest: attended(q, k, v, *rest),
        lambda q, k, v, **rest: attended(q, k, v, **rest),
        lambda a, b, c, d: attended(a, b, c, d),
        lambda *args: attended(*args),
        attended,
    ],
)
def test_a_mask_is_passed_where_it_is_taken(function):
    result = called(function, "attention", q=Q, k=K, v=V, mask=MASK)
    np.testing.assert_array_equal(result.out, attended(Q, K, V, MASK))


@pytest.mark.parametrize(
    ("role", "function", "args", "error"),
    [
        ("attention", lambda q, k, v: q, MASKED, "has no argument for mask; it takes q, k, v"),
        ("attention", lambda q, k, v, causal=False: q, MASKED, "has no argument for mask"),
        ("attention", lambda a, b, c: a, MASKED, "has no argument for mask"),
        ("softmax", lambda x: x, {"x": X, "axis": 0}, "has no argument for axis; it takes x"),
        ("multi_head", lambda x, w_q, w_k, w_v, w_o, n_heads: x, CAUSAL, "has no argument for causal"),
        ("multi_head", lambda x, w_q, w_k, w_v, w_o: x, MULTI, "has no argument for n_heads"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_taken_is_not_judged(role, function, args, error):
    result = called(function, role, **args)
    assert result.untaken
    assert result.error == f"<lambda> {error}" or result.error.startswith(f"<lambda> {error}; it takes ")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda q, k, v, foo: q, "asks for 'foo', which is none of the known arguments (q, k, v, mask, causal)"),
        (lambda q, k: q, "has no argument for v; it takes q, k"),
        (lambda q, mask=None: q, "has no argument for k, v; it takes q, mask"),
        (lambda a, b, c, d, e: a, "asks for 'e', which is none of the known arguments (q, k, v, mask, causal)"),
    ],
)
def test_what_cannot_be_passed_is_an_error(function, error):
    result = called(function, "attention", q=Q, k=K, v=V)
    assert (result.error, result.untaken, result.out) == (f"<lambda> {error}", False, None)


def test_neutral_options_are_left_out_where_they_are_not_taken():
    assert called(lambda x: x, "softmax", x=X, axis=-1).error == ""
    assert called(lambda z, dim: z * dim, "softmax", x=X, axis=1).out.tolist() == X.tolist()
    assert called(lambda q, k, v: q, "attention", q=Q, k=K, v=V, mask=None).error == ""
    assert called(lambda *a: a[0], "multi_head", **MULTI).error == ""


def test_causal_where_only_a_mask_is_taken_is_the_lower_triangle():
    def mha(x, w_q, w_k, w_v, w_o, heads, mask=None):
        return x if mask is None else mask

    assert called(mha, "multi_head", **MULTI).out.tolist() == X.tolist()
    assert called(mha, "multi_head", **{**MULTI, "causal": True}).out.tolist() == np.tri(3, dtype=bool).tolist()


def test_by_position_is_noted_and_by_name_is_not():
    result = called(lambda a, b, c: a, "attention", q=Q, k=K, v=V)
    assert result.notes == ("no argument has a known name: passed by position, as q, k, v",)
    assert called(attended, "attention", q=Q, k=K, v=V).notes == ()


def test_a_function_of_q_k_and_v_is_given_the_tokens_three_times():
    def multi_head_attention(query, key, value, W_q, Wk, w_value, WO, h):
        return np.stack([query + key + value, query * (h + W_q[0, 0] + Wk[0, 0] + w_value[0, 0] + WO[0, 0])])

    out = called(multi_head_attention, "multi_head", **MULTI).out
    np.testing.assert_allclose(out, [3 * X, X * (2 + sum(w[0, 0] for w in W.values()))])


def test_each_call_has_arrays_of_its_own_but_those_that_come_again():
    def softmax(x, axis=-1):
        x += 1
        return x.copy()

    x = np.zeros(3)
    call = Call("softmax", {"x": x, "axis": -1})
    first, second, third = subject(softmax).run([call, call._replace(again=True), call]).results
    np.testing.assert_array_equal([first.out, second.out, third.out], [x + 1, x + 2, x + 1])
    assert first.changed == second.changed == ("x",)
    assert x.tolist() == [0, 0, 0]


def test_changed_is_by_bytes():
    x = np.array([np.nan, 1.0])
    assert called(lambda x: x * 2, "softmax", x=x).changed == ()
    assert called(lambda x: np.negative(x[:0]), "softmax", x=x).changed == ()
    assert called(lambda x: x.sort() or x, "softmax", x=np.array([2.0, 1.0])).changed == ("x",)
    assert called(lambda x: x.pop() and np.ones(1), "softmax", x=[1.0, 2.0]).changed == ("x",)


# ------------------------------------------------------------------------------------------- results
class Named:
    def __init__(self, output, attention_weights):
        self.output, self.attention_weights = output, attention_weights


class Steps(NamedTuple):
    scores: object
    weights: object
    out: object


class Sub(np.ndarray):
    pass


OUT, WEIGHTS = np.ones((2, 3)), np.ones((2, 2)) / 2


@pytest.mark.parametrize(
    ("value", "weighted"),
    [
        (OUT, False),
        (OUT.tolist(), False),
        (list(OUT), False),
        (OUT.view(Sub), False),
        (np.asfortranarray(OUT), False),
        ((OUT, WEIGHTS), True),
        ([OUT, WEIGHTS], True),
        ((OUT.tolist(), WEIGHTS.tolist()), True),
        ([OUT.tolist(), WEIGHTS.tolist()], True),
        ((OUT, None), False),
        ({"output": OUT, "attn": WEIGHTS}, True),
        ({"out": OUT}, False),
        ((OUT, {"weights": WEIGHTS}), True),
        (Named(OUT, WEIGHTS), True),
        (Steps(0, WEIGHTS, OUT), True),
    ],
)
def test_what_is_returned_is_taken_as_it_is_meant(value, weighted):
    result = called(lambda q, k, v: value, "attention", q=Q, k=K, v=V)
    assert (result.error, result.notes) == ("", ())
    np.testing.assert_array_equal(result.out, OUT)
    assert type(result.out) is np.ndarray
    assert weighted is (result.weights is not None)
    if weighted:
        np.testing.assert_array_equal(result.weights, WEIGHTS)


@pytest.mark.parametrize("value", [np.float32(2), 2, True, np.arange(3, dtype=np.int8), [[True], [False]], (1, 2.5)])
def test_numbers_of_any_real_kind_are_arrays(value):
    out = called(lambda x: value, "softmax", x=X).out
    assert out.dtype == np.array(value).dtype
    np.testing.assert_array_equal(out, value)


LISTS = [lambda *arrays: list(arrays), lambda *arrays: [array.tolist() for array in arrays]]


@pytest.mark.parametrize("paired", LISTS)
def test_a_list_of_two_equal_arrays_is_out_and_weights_where_weights_are_asked_for(paired):
    square, wrong = np.ones((2, 2)), np.ones((5, 5))
    result = called(lambda q, k, v: paired(square, 2 * square), "attention", q=Q, k=K, v=np.ones((2, 2)))
    np.testing.assert_array_equal([result.out, result.weights], [square, 2 * square])
    assert called(lambda q, k, v: paired(wrong, wrong), "attention", q=Q, k=K, v=V).weights.shape == (5, 5)
    assert called(lambda *a: paired(X, X), "multi_head", **MULTI).weights.shape == (3, 4)
    assert called(lambda x: paired(X, X), "softmax", x=X).out.shape == (2, 3, 4)
    assert called(lambda n: paired(X, X), "causal_mask", n=3).weights is None


@pytest.mark.parametrize("paired", LISTS)
def test_a_list_of_two_equal_arrays_is_one_array_where_that_has_the_shape_of_the_output(paired):
    batch = {name: np.stack([array, array]) for name, array in {"q": Q, "k": K, "v": V}.items()}
    result = called(lambda q, k, v: paired(*v), "attention", **batch)
    np.testing.assert_array_equal(result.out, batch["v"])
    assert result.weights is None
    layer = {**MULTI, "x": np.stack([X, X])}
    assert called(lambda x, *rest: paired(*x), "multi_head", **layer).out.shape == (2, 3, 4)


@pytest.mark.parametrize("paired", LISTS)
def test_a_list_of_out_and_weights_of_heads_is_a_pair(paired):
    weights = np.ones((2, 3, 3))
    result = called(lambda *a: paired(X, weights), "multi_head", **MULTI)
    np.testing.assert_array_equal(result.out, X)
    np.testing.assert_array_equal(result.weights, weights)


def test_equal_arrays_in_a_tuple_are_out_and_weights():
    assert called(lambda q, k, v: (WEIGHTS, WEIGHTS), "attention", q=Q, k=K, v=V).weights.shape == (2, 2)


def test_more_than_two_values_are_noted():
    result = called(lambda q, k, v: (OUT, WEIGHTS, Q), "attention", q=Q, k=K, v=V)
    assert result.notes == ("3 values were returned: the first two are taken",)
    result = called(lambda q, k, v: (OUT, Callable()), "attention", q=Q, k=K, v=V)
    assert result.notes == ("the second value returned is a Callable, no array: it is not looked at",)
    assert result.weights is None


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, "returned None: is there a return?"),
        ("x", "returned a str, expected an ndarray"),
        (Callable(), "returned a Callable, expected an ndarray"),
        ((None, WEIGHTS), "returned None: is there a return?"),
        ((n for n in ()), "returned a generator, expected an ndarray"),
        (np.array([1j]), "returned an array of dtype complex128, expected real numbers"),
        (np.array([None]), "returned an array of dtype object, expected real numbers"),
        (np.array(["a"]), "returned an array of dtype <U1, expected real numbers"),
        ([[1, 2], [3]], "returned a list whose parts have different shapes, expected an ndarray"),
        (np.ma.ones(2), "returned a masked array, expected a plain ndarray: np.asarray or .filled() makes one"),
        (OUT.view(np.matrix), "returned a np.matrix, expected a plain ndarray: np.asarray or .filled() makes one"),
        (np.zeros(5000), "returned 40000 bytes in shape (5000,): more than the 32768 that may be"),
        ({"foo": OUT}, "returned a dict, expected an ndarray"),
    ],
)  # fmt: skip
def test_what_is_no_array_is_an_error_that_says_what_it_is(value, error):
    found = subject({"softmax": lambda x: value}, limits=Limits(output=1 << 15))
    (result,) = found.run([Call("softmax", {"x": X})]).results
    assert result.error == f"<lambda> {error}"
    assert (result.out, result.weights, result.untaken) == (None, None, False)


def test_results_together_are_bounded():
    found = subject({"softmax": lambda x: np.zeros(3000)}, limits=Limits(output=1 << 15))
    first, second = found.run([Call("softmax", {"x": X})] * 2).results
    assert first.error == ""
    assert second.error == "<lambda> returned 24000 bytes in shape (3000,): more than the 8768 that may be"


def test_an_exception_says_its_type_and_line():
    def softmax(x):
        raise ValueError("no\nway")

    line = softmax.__code__.co_firstlineno + 1
    result = called(softmax, "softmax", x=X)
    assert result.error == f"ValueError: no way (line {line} of test_check_targets.py)"
    assert called(lambda x: sys.exit(2), "softmax", x=X).error.startswith("SystemExit: 2 (line ")
    assert called(lambda x: x @ x, "softmax", x=X).error.startswith("ValueError: matmul")


def test_an_interrupt_from_the_keyboard_is_the_users():
    def softmax(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        called(softmax, "softmax", x=X)


# ------------------------------------------------------------------------------------------- layers
class Base:
    def __init__(self, d_model, num_heads, seed=0):
        rng = np.random.default_rng(seed)
        self.drawn = {name: rng.normal(size=(d_model, d_model)) for name in W}
        self.biases = {f"b_{name[2:]}": rng.normal(size=d_model) for name in W}
        self.heads = num_heads
        self.keep()

    def __call__(self, x, is_causal=False):
        out = x
        for w in self.drawn.values():
            out = out @ w
        return (out * self.heads + is_causal, np.ones((2, 2)))


class Linear:
    def __init__(self, weight, bias=None):
        self.weight, self.bias = weight, bias


class MyLinear:
    def __init__(self, W):
        self.W = W


class Flat(Base):
    def keep(self):
        self.W_q, self._wk, self.w_value, self.WO = self.drawn.values()


class Biased(Flat):
    def keep(self):
        super().keep()
        self.q_bias, self.b_k, self.b_value, self.bO = self.biases.values()


class InDict(Base):
    def keep(self):
        self.params = {name.upper(): w for name, w in self.drawn.items()}
        self.grads = {name: 0 * w for name, w in self.drawn.items()}


class Parts(Base):
    def keep(self):
        pairs = zip(self.drawn.values(), self.biases.values(), strict=True)
        self.q_proj, self.key, self.W_v, self.out_proj = (Linear(w.T, b) for w, b in pairs)


class OwnParts(Base):
    def keep(self):
        self.q, self.k, self.v, self.o = map(MyLinear, self.drawn.values())


class Packed(Base):
    def keep(self):
        self.w_qkv = np.concatenate([self.drawn[name] for name in ("w_q", "w_k", "w_v")], axis=1)
        self.qkv_bias = np.concatenate([self.biases[name] for name in ("b_q", "b_k", "b_v")])
        self.w_out = self.drawn["w_o"]


class Torch(Base):
    def keep(self):
        self.in_proj_weight = np.concatenate([self.drawn[name].T for name in ("w_q", "w_k", "w_v")])
        self.in_proj_bias = np.concatenate([self.biases[name] for name in ("b_q", "b_k", "b_v")])
        self.out_proj = Linear(self.drawn["w_o"].T)


class Late(Base):
    def keep(self):
        self.weights = None

    def __call__(self, x, is_causal=False):
        self.weights = dict(self.drawn)
        return super().__call__(x, is_causal)


class Capitals(Base):
    def keep(self):
        self.A, self.B, self.C, self.D = self.drawn.values()
        self.d, self.Params = 4, {"E_1": np.eye(3)}


class Unknown(Base):
    def keep(self):
        self.one, self.two, self.three, self.four = self.drawn.values()


def rows(drawn):
    return [drawn[name] for name in W]


@pytest.mark.parametrize("cls", [Flat, Biased, InDict, Parts, OwnParts, Packed, Torch, Late])
@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_is_made_and_called_and_its_weights_read(cls, causal):
    result = called(cls, "layer", **{**LAYER, "causal": causal})
    made = cls(4, 2, 3)
    assert result.error == ""
    np.testing.assert_array_equal(result.out, made(X, causal)[0])
    np.testing.assert_array_equal([result.params[name] for name in W], rows(made.drawn))
    biases = {name: bias for name, bias in result.params.items() if name[0] == "b"}
    assert len(biases) == {Biased: 4, Parts: 4, Packed: 3, Torch: 3}.get(cls, 0)
    for name, bias in biases.items():
        np.testing.assert_array_equal(bias, made.biases[name])


def test_unknown_names_of_weights_are_shown_as_they_are():
    error = called(Capitals, "layer", **LAYER).error
    assert "it has E_1 (3, 3), A (4, 4), B (4, 4), C (4, 4), D (4, 4); define" in error
    error = returned_from({"A": np.eye(2), "a": np.eye(3)})
    assert "it has A (2, 2), a (3, 3); define" in error


def returned_from(layer):
    with pytest.raises(UnfitError, match="under no known name") as caught:
        returned.weights_of(layer, TABLES, 1 << 20)
    return str(caught.value)


def test_weights_under_unknown_names_ask_for_an_adapter():
    error = called(Unknown, "layer", **LAYER).error
    assert error.startswith("Unknown keeps w_q, w_k, w_v, w_o under no known name: it has four (4, 4), one (4, 4), ")
    assert "define a function weights_of(layer) that returns {" in error


@pytest.mark.parametrize(
    ("weights_of", "error"),
    [
        (lambda layer: layer.drawn, ""),
        (lambda layer: {**layer.drawn, **layer.biases}, ""),
        (lambda layer: None, "weights_of returned None: is there a return?, expected a dict"),
        (lambda layer: {"w_q": 1}, "weights_of returned a dict of w_q, expected a dict of w_q, w_k, w_v, w_o"),
        (lambda layer: {**layer.drawn, "w_k": X[0]}, "weights_of returned w_k of shape (4,), expected 2 axes"),
        (lambda layer: {**layer.drawn, "w_k": "x"}, "weights_of returned, as w_k, a str, expected an ndarray"),
        (lambda layer: layer.none, "AttributeError: 'Unknown' object has no attribute 'none'"),
    ],
)
def test_an_adapter_hands_out_the_weights(weights_of, error):
    found = subject({"layer": Unknown, "weights_of": weights_of})
    (result,) = found.run([Call("layer", LAYER)]).results
    assert error in result.error
    assert bool(error) is bool(result.error)
    assert error or [*result.params][:4] == [*W]


class Book:
    """With the arguments of a well-known book, and a forward."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        assert (d_in, d_out, context_length, dropout) == (4, 4, 3, 0.0)
        self.W_query = self.W_key = self.W_value = self.out_proj = Linear(np.eye(4))

    def forward(self, x):
        return x


class ToldWhenMade(Flat):
    def __init__(self, dim, n_heads, rng, causal=True):
        assert isinstance(rng, np.random.Generator)
        self.causal = causal
        super().__init__(dim, n_heads, rng)

    def __call__(self, query, key, value):
        return query + key + value + self.causal


class CausalSelfAttention(Flat):
    def __call__(self, tokens):
        return tokens


class Handed:
    def __init__(self, w_q, w_k, w_v, w_o, n_heads):
        self.w_q, self.w_k, self.w_v, self.w_o = w_q, w_k, w_v, w_o

    def __call__(self, x, mask=None):
        return x if mask is None else mask


def test_layers_of_other_makes():
    book = subject({"layer": Book}).run([Call("layer", LAYER)]).results[0]
    assert (book.error, book.out.tolist()) == ("", X.tolist())
    for causal in (False, True):
        told = called(ToldWhenMade, "layer", **{**LAYER, "causal": causal})
        np.testing.assert_array_equal(told.out, 3 * X + causal)
    handed = called(Handed, "layer", **{**LAYER, "causal": True})
    assert handed.out.tolist() == np.tri(3, dtype=bool).tolist()
    assert [w.shape for w in handed.params.values()] == [(4, 4)] * 4


def test_a_layer_that_is_always_causal_is_not_asked_to_be_otherwise():
    assert called(CausalSelfAttention, "layer", **{**LAYER, "causal": True}).error == ""
    result = called(CausalSelfAttention, "layer", **LAYER)
    assert result.untaken
    assert result.error == "CausalSelfAttention is always causal by its name, and has no argument for it"


class Mute:
    def __init__(self, d_model, n_heads):
        self.w_q = self.w_k = self.w_v = self.w_o = np.eye(d_model)


def test_a_layer_that_cannot_be_called():
    error = called(Mute, "layer", **LAYER).error
    assert error == "Mute cannot be called: define __call__ or forward"


# ------------------------------------------------------------------------------------------- objects
class Lesson:
    def softmax(self, x):
        return 2 * x

    @staticmethod
    def causal_mask(size):
        return np.tri(size, dtype=bool)


def softmax(x):
    print("seen", np.log(np.zeros(1)), file=sys.stderr)
    return x


def test_objects_of_every_kind():
    assert subject(softmax).found == {"softmax": "softmax"}
    assert subject(Lesson).found == subject(Lesson()).found == {"softmax": "softmax", "causal_mask": "causal_mask"}
    assert subject(Lesson).run([Call("softmax", {"x": X})]).results[0].out.tolist() == (2 * X).tolist()
    assert subject(CausalSelfAttention).found == {"layer": "CausalSelfAttention"}
    assert subject({"sdpa": attended, "layer": Flat}).found == {"attention": "sdpa", "layer": "layer"}
    assert subject(attended, functions={"attention": "attended"}).found == {"attention": "attended"}
    assert subject(sys.modules[__name__]).found["softmax"] == "softmax"


def test_names_that_are_chosen_come_before_those_that_are_known():
    found = subject(Lesson, functions={"softmax": "causal_mask", "attention": "nowhere"})
    assert found.found == {"softmax": "causal_mask", "causal_mask": "causal_mask"}
    assert found.absent == {"attention": "nowhere"}


@pytest.mark.parametrize("kind", ["file", "module", "dict"])
def test_a_name_that_is_not_there_leaves_those_that_are_known(tmp_path, kind):
    path = tmp_path / "lesson.py"
    path.write_text("def attn(q, k, v):\n    return v\n")
    module = types.ModuleType("lesson")
    module.attn = attended
    target = {"file": path, "module": module, "dict": {"attn": attended}}[kind]
    found = subject(target, functions={"attention": "nowhere"})
    assert (found.found, found.absent) == ({"attention": "attn"}, {"attention": "nowhere"})
    found = subject(target, functions={"attention": "attn"})
    assert (found.found, found.absent) == ({"attention": "attn"}, {})


def test_an_object_says_that_no_limit_holds_and_the_process_stays_as_it_is(capsys):
    found = subject(softmax)
    assert found.limits_off == ("time", "memory", "processor time", "size of files", "processes left behind")
    run = found.run([Call("softmax", {"x": X}), Call("attention", {"q": Q})])
    assert run.printed == "seen [-inf]\n"
    assert [result.error for result in run.results] == ["", "attention is not defined"]
    assert capsys.readouterr() == ("", "")
    assert found.broken == ""
    assert "def softmax(x):" in found.source
    reader = subject({"softmax": lambda x: input()})
    assert reader.run([Call("softmax", {"x": X})]).results[0].error.startswith("EOFError")


def test_what_is_printed_to_has_bytes_beneath_and_is_no_file():
    def softmax(x):
        print("text")
        sys.stdout.buffer.write(b"bytes\n")
        sys.stdout.close()
        print(sys.stdin.buffer.read(), "\udc80", file=sys.stderr)
        with pytest.raises(io.UnsupportedOperation, match="fileno"):
            sys.stdout.fileno()
        return x

    run = subject(softmax).run([Call("softmax", {"x": X})])
    assert run.results[0].error == ""
    assert run.printed == "text\nbytes\nb'' \\udc80\n"


def state():
    """What a solution can change of its process, as numbers and texts."""
    return (
        os.getcwd(), dict(os.environ), sys.getrecursionlimit(), sys.excepthook, threading.excepthook,
        sys.unraisablehook, sys.displayhook, gc.isenabled(), [*sys.path], warnings.filters[:],
        np.geterr(), np.get_printoptions(),
        sys.gettrace(), sys.getprofile(), sys.stdin, sys.stdout, sys.stderr, random.getstate(),
        str(np.random.get_state()),  # noqa: NPY002
    )  # fmt: skip


def disturb(x):
    os.chdir("/")
    os.environ["HEADWISE_TEST"] = "1"
    del os.environ["PATH"]
    sys.setrecursionlimit(sys.getrecursionlimit() + 7)
    sys.excepthook = threading.excepthook = sys.unraisablehook = sys.displayhook = print
    gc.disable()
    sys.path.insert(0, "/nowhere")
    warnings.simplefilter("error")
    np.seterr(all="raise")
    np.set_printoptions(precision=1)
    sys.settrace(lambda *_: None)
    sys.setprofile(lambda *_: None)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - what a solution may do
    sys.stdin = sys.stdout = sys.stderr = None
    return x


@pytest.mark.parametrize("raises", [False, True])
def test_the_process_is_as_it_was_after_each_call(raises):
    inside = []

    def softmax(x):
        inside.append((os.getcwd(), np.geterr()["over"], "PATH" in os.environ, sys.excepthook is print))
        disturb(x)
        return x.foo if raises else x

    before = state()
    results = subject(softmax).run([Call("softmax", {"x": X})] * 2).results
    after = state()
    assert after == before
    assert inside == [(os.getcwd(), "ignore", True, False)] * 2
    assert [bool(result.error) for result in results] == [raises, raises]


def test_a_recursion_limit_that_is_too_low_is_an_error_of_the_call():
    def softmax(x):
        for limit in range(1, sys.getrecursionlimit()):
            with contextlib.suppress(RecursionError):
                sys.setrecursionlimit(limit)  # the lowest that there is room for
                return x
        return x

    before = sys.getrecursionlimit()
    (result,) = subject(softmax).run([Call("softmax", {"x": X})]).results
    assert result.error == "" or result.error.startswith("RecursionError")
    assert sys.getrecursionlimit() == before


def hostile(*_, **__):
    raise RuntimeError("hostile")


def mistyped(*_, **__):
    raise TypeError("hostile")


HOSTILE = {
    "__getattr__": hostile,
    "__getattribute__": hostile,
    "__name__": property(hostile),
    "__signature__": property(hostile),
    "__class__": property(hostile),
    "__module__": property(hostile),
    "__dict__": property(hostile),
    "__dir__": hostile,
    "__repr__": hostile,
    "__eq__": hostile,
}


@pytest.mark.parametrize(("name", "code"), [*HOSTILE.items(), ("__class__", property(mistyped))])
def test_an_object_whose_own_code_raises_yields_a_result(name, code):
    target = type("Hostile", (), {name: code, "__call__": lambda self, x, axis=-1: x})()
    for holder in ({"softmax": target}, type("Lesson", (), {"softmax": target})):
        found = subject(holder)
        assert found.found == {"softmax": "softmax"}
        (result,) = found.run([Call("softmax", {"x": X})]).results
        assert result.error == "" or "Error: hostile" in result.error
    returned = [target, [target, target], (X, target)]
    results = [called(lambda x, value=value: value, "softmax", x=X) for value in returned]
    assert all(result.error for result in results[:2])
    assert results[2].error == "" or "Error: hostile" in results[2].error
    with pytest.raises(TypeError, match="grade: target: expected a function or class whose name is known"):
        subject(target)


def test_a_class_and_errors_whose_own_code_raises_yield_a_result():
    def mute(cls, name):
        raise RuntimeError(f"no {name}")

    meta = type("Meta", (type,), {"__getattribute__": mute, "__name__": property(hostile)})
    error = meta("Mute", (Exception,), {})

    def softmax(x):
        raise error("said")

    assert called(softmax, "softmax", x=X).error.startswith("Mute: said (line ")
    given = called(meta("Mute", (), {}), "layer", **LAYER)  # a name of its own: pytest would ask the class for its text
    assert given.error.startswith("TypeError: Mute() takes no arguments")
    assert called(lambda x: x.append(error) or X, "softmax", x=[1.0]).changed == ("x",)


def test_what_an_object_prints_is_capped():
    run = subject({"softmax": lambda x: print("y" * 99) or x}, limits=Limits(printed=10)).run(
        [Call("softmax", {"x": X})]
    )
    assert run.printed == "y" * 10


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (lambda x: x, TypeError, r"target: expected a function or class whose name is known, got '<lambda>'; say"),
        (3, TypeError, r"grade: target: expected a path, '-', a module, .*, got int"),
        (None, TypeError, r"expected a path.*got NoneType"),
        (CausalSelfAttention(4, 2), TypeError, r"expected the class of a layer, got an object of it; give CausalSelf"),
        ({"foo": abs}, ValueError, r"target: expected keys of softmax, attention, .*, got 'foo'; rename it"),
        ({"softmax": 3}, TypeError, r"target: expected a function as 'softmax', got int"),
    ],
)  # fmt: skip
def test_what_cannot_be_graded_is_refused(target, error, text):
    with pytest.raises(error, match=text):
        subject(target)


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ({"foo": "x"}, "functions: expected keys of softmax, .*got 'foo'"),
        ({"softmax": 3}, "expected a name for 'softmax'"),
    ],
)
def test_functions_must_name_what_there_is(functions, text):
    with pytest.raises((TypeError, ValueError), match=text):
        subject(softmax, functions=functions)


# ------------------------------------------------------------------------------------------- files
PROGRAM = """\
import numpy as np
from functools import partial

if __name__ == "__main__":
    raise SystemExit("not to be run")

def attention(q, k, v, mask=None):
    q[0, 0] = 7
    return q + k + v, np.ones((2, 2))

class SelfAttention:
    def __init__(self, d_model, n_heads):
        self.w_q = self.w_k = self.w_v = self.w_o = np.eye(d_model)

    def __call__(self, x):
        return x

soft_max = partial(np.multiply, 2)
mine = soft_max
"""


def test_a_file_is_run_in_a_process_of_its_own(tmp_path):
    path = tmp_path / "lesson.py"
    path.write_text(PROGRAM)
    found = subject(path, functions={"causal_mask": "mine"})
    assert (found.name, found.broken, found.limits_off) == ("lesson.py", "", ())
    names = {"attention": "attention", "layer": "SelfAttention", "softmax": "soft_max", "causal_mask": "mine"}
    assert found.found == names
    calls = [
        Call("attention", {"q": Q, "k": K, "v": V, "mask": None}),
        Call("layer", LAYER),
        Call("softmax", {"x": [1, 2]}),
        Call("multi_head", MULTI),
        Call("attention", {"q": Q, "k": K, "v": V}, again=True),
    ]
    run = found.run(calls)
    first, layer, soft, multi, _ = run.results
    assert run.broken == ""
    assert run.seconds > 0
    assert first.changed == ("q",)
    assert (first.out.shape, first.weights.shape) == ((2, 3), (2, 2))
    np.testing.assert_array_equal(layer.params["w_o"], np.eye(4))
    assert soft.out.tolist() == [2, 4]
    assert multi.error == "multi_head is not defined"


def notebook(*cells, **more):
    return json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells], **more})


def test_a_notebook_is_run_cell_by_cell(tmp_path):
    path = tmp_path / "lesson.ipynb"
    cells = [
        ["%matplotlib inline\n", "import numpy as np\n", "!pip install numpy\n", "files = !ls\n", "np.array?"],
        "raise ValueError('no')\nx = 1",
        "%%bash\nexit 3",
        "%%time\ndef softmax(x):\n    text = '''\n%d''' \\\n  % 3\n    return x if x.ndim == 2 else x.foo",
        "display(3)\ndef broken(:",
        "import sys\nsys.exit(4)",
        "softmax(np.zeros(3))",
    ]
    markdown = {"cell_type": "markdown", "source": "def softmax"}
    path.write_text(json.dumps({"cells": [markdown, *json.loads(notebook(*cells))["cells"]]}))
    found = subject(path)
    assert found.broken == ""
    assert found.found == {"softmax": "softmax"}
    assert found.notes[0] == "cell 2 raised ValueError: no (line 1)"
    assert found.notes[1].startswith("cell 5 raised SyntaxError: ")
    assert found.notes[1].endswith(" (line 2)")
    assert found.notes[2] == "cell 6 raised SystemExit: 4 (line 2)"
    no_foo = "AttributeError: 'numpy.ndarray' object has no attribute 'foo' (line 6 of cell 4)"
    assert found.notes[3:] == (f"cell 7 raised {no_foo}",)
    good, bad = found.run([Call("softmax", {"x": X}), Call("softmax", {"x": X[0]})]).results
    assert good.out.tolist() == X.tolist()
    assert bad.error == no_foo


def test_an_old_notebook_and_one_that_does_not_end(tmp_path):
    path = tmp_path / "old.ipynb"
    cell = {"cell_type": "code", "input": ["def softmax(x):\n", "    return x"]}
    path.write_text(json.dumps({"worksheets": [{"cells": [cell]}]}))
    assert subject(path).found == {"softmax": "softmax"}
    path.write_text(notebook("x = 1", "while True:\n    pass"))
    assert re.fullmatch(r"did not end within 1 s \(line [12] of cell 2\)", subject(path, limits=Limits(1.0)).broken)


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def softmax(x):\n    return x.foo\n")))
    found = subject("-")
    assert (found.name, found.found) == ("stdin.py", {"softmax": "softmax"})
    error = found.run([Call("softmax", {"x": X})]).results[0].error
    assert error.endswith("'foo' (line 2 of stdin.py)")


def test_a_file_may_import_its_neighbours_but_they_hide_nothing(tmp_path):
    (tmp_path / "helpers.py").write_text("def softmax(x):\n    return x\n")
    (tmp_path / "colorsys.py").write_text("raise ImportError('hidden')\n")
    path = tmp_path / "it.py"
    path.write_text("import colorsys\nfrom helpers import softmax\n")
    found = subject(str(path))
    assert (found.broken, found.found) == ("", {"softmax": "softmax"})


def test_a_file_in_another_encoding_that_says_so(tmp_path):
    path = tmp_path / "it.py"
    path.write_bytes("# coding: latin-1\nname = 'é'\ndef softmax(x):\n    return x * len(name)\n".encode("latin-1"))
    found = subject(path)
    assert "é" in found.source
    assert found.run([Call("softmax", {"x": X})]).results[0].out.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("absent.py", None, r"absent\.py: expected a file that can be read, got 'No such file or directory'"),
        ("folder.py", "", r"expected a file, got a folder; name a regular file"),
        ("it.txt", b"", r"expected a name that ends in \.py or \.ipynb, got 'it\.txt'"),
        ("it.py", b"x = '\xff'\n", r"expected UTF-8, or the encoding that it declares, got "),
        ("it.py", b"# coding: nothing\n", r"expected UTF-8, or .*unknown encoding"),
        ("it.py", b"#" * (MOST_SOURCE + 1), r"expected at most 4194304 bytes, got 4194305; name a smaller file"),
        ("it.ipynb", b"x = 1", r"expected a notebook, got 'Expecting value"),
        ("it.ipynb", b"[1]", r"expected a notebook, got 'a notebook is an object with cells'"),
        ("it.ipynb", b'{"cells": 3}', r"expected a notebook, got 'a notebook is an object with cells'"),
        ("it.ipynb", b'{"worksheets": []}', r"expected a notebook, got 'a notebook is an object with cells'"),
        ("it.ipynb", b'{"a": ' * 100000, r"expected a notebook, got "),
        ("it.ipynb", b'{"cells": "\xff"}', r"expected UTF-8, got "),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, name, content, text):
    path = tmp_path / name
    if content == "":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=text):
        subject(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "it.py")
    with pytest.raises(FileError, match="expected a file, got a named pipe"):
        subject(tmp_path / "it.py")


# ------------------------------------------------------------------------------------------- frameworks
@pytest.fixture
def installed(tmp_path):
    """A folder of libraries that is none of the solution's; torch among them, which is empty."""
    folder = tmp_path / "installed"
    for name in ("torch", "elsewhere", "beneath"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("import beneath\n" if name == "elsewhere" else "")
    return folder


def graded(folder, text, *calls):
    """A solution in a folder of its own, after some calls."""
    path = folder / "own" / "it.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"import sys\nsys.path.insert(0, {str(folder / 'installed')!r})\n{text}")
    found = subject(path)
    assert found.run([Call("softmax", {"x": X})] * 2).broken == ""
    return found


@pytest.mark.parametrize(
    "body",
    [
        "__import__('tor' + 'ch')",
        "importlib.import_module('hcrot'[::-1])",
        "__import__('tor' + 'ch'); del sys.modules['torch']",
        "sys.modules['mine'] = __import__('tor' + 'ch'); del sys.modules['torch']; sys.path.pop(0)",
        "s = util.find_spec('hcrot'[::-1]); s.loader.exec_module(util.module_from_spec(s)); del sys.path[0]",
        "exec(''.join(['impo', 'rt tor', 'ch']))",
    ],
)
def test_what_is_imported_late_and_by_other_ways_is_seen(tmp_path, installed, body):
    found = graded(
        tmp_path, f"import importlib\nfrom importlib import util\ndef softmax(x):\n    {body}\n    return x\n"
    )
    assert (found.frameworks, found.libraries) == (("torch",), ("torch",))


def test_libraries_are_all_but_pythons_own_and_numpy_and_the_solution(tmp_path, installed):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "helpers.py").write_text("def same(x):\n    return x\n")
    text = (
        "import json, decimal, _csv, xml.dom.minidom, numpy.linalg, numpy.testing, numpy.polynomial\n"
        "from helpers import same as softmax\nopen('written.py', 'w').write('x = 1')\n"
        "sys.path.insert(0, '.')\nimport written\n"
    )
    assert graded(tmp_path, text).libraries == ()
    assert graded(tmp_path, text + "import elsewhere\n").libraries == ("elsewhere",)
    assert graded(tmp_path, text + "__import__('else' + 'where')\n").libraries == ("beneath", "elsewhere")
    assert graded(tmp_path, text + "import elsewhere\n").frameworks == ()
    assert graded(tmp_path, text + "def f():\n    import jax, elsewhere\n").libraries == ("jax",)


def test_what_an_object_imports_or_uses_is_seen(tmp_path, installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    for name in ("torch", "elsewhere", "beneath"):
        monkeypatch.setitem(sys.modules, name, None)  # so that what is loaded now is taken out again
        del sys.modules[name]
    namespace = {"library": types.ModuleType("jax.numpy"), "np": np}
    exec("def softmax(x):\n    [__import__(name) for name in ('elsewhere', 'hcrot'[::-1])]\n    return x", namespace)
    exec("def attention(q, k, v):\n    return (lambda: library)()", namespace)
    found = subject({name: namespace[name] for name in ("softmax", "attention")})
    assert (found.frameworks, found.libraries) == (("jax",), ("jax",))
    found.run([Call("softmax", {"x": X})])
    assert (found.frameworks, found.libraries) == (("jax", "torch"), ("beneath", "elsewhere", "jax", "torch"))


def test_frameworks_are_named(tmp_path):
    (tmp_path / "jax.py").write_text("")
    path = tmp_path / "it.py"
    path.write_text(
        "import importlib, numpy\nhidden = __import__('j' + 'ax')\n"
        "def softmax(x):\n    import torch.nn as nn\n    from tensorflow import keras\n    from . import onnx\n"
        "    importlib.import_module('flax.linen')\n    return __import__('mlx')\n"
    )
    assert subject(path).frameworks == ("flax", "jax", "mlx", "tensorflow", "torch")
    path.write_text("def softmax(x):\n    'torch'\n    return '\\d'\n")
    assert subject(path).frameworks == ()


def test_frameworks_of_notebooks_and_objects(tmp_path):
    import headwise

    path = tmp_path / "it.ipynb"
    path.write_text(notebook("def broken(:", "%matplotlib inline\nif 0:\n    import torch"))
    assert subject(path).frameworks == ("torch",)
    assert subject(headwise).frameworks == ("headwise",)
    assert subject({"softmax": headwise.softmax}).frameworks == ("headwise",)
    assert subject(softmax).frameworks == ()
