"""Gradients of attention: those of the formulas, whatever the options, the tiles, the path and the company."""

from typing import Any

import numpy as np
import pytest
from definition import forced
from dense_vjp import assert_as_wanted, in_tiles
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import Case, problems

import headwise as hw
from examples import fewer
from headwise.core import paths
from headwise.testing import check_vjp

SIDE = st.integers(1, 9)


def grown(case: Case, with_lse: bool) -> tuple[Any, Any]:
    """Gradients of the results: anything where a query sees nothing, NaN too."""
    rng = np.random.default_rng(case.recipe.seed)
    d_out = rng.standard_normal(case.out_shape)
    d_lse = rng.standard_normal(case.scores[:-1]) if with_lse else None
    dead = ~case.visible.any(axis=-1)
    d_out[dead] = rng.choice([np.nan, np.inf, 7.0], d_out[dead].shape)
    if d_lse is not None and not case.recipe.sinks:  # with sinks it is a gradient of theirs
        d_lse[dead] = np.nan
    if case.recipe.wild == "anywhere" and d_out.size and rng.random() < 0.5:
        d_out.ravel()[rng.integers(d_out.size)] = rng.choice([np.nan, np.inf])
    return d_out, d_lse


def assert_gradients(case: Case, with_lse: bool = False) -> None:
    d_out, d_lse = grown(case, with_lse)
    *_, vjp = hw.attention_vjp(*case.args, **case.options, return_lse=True, threads=1)
    call = {"d_out": d_out, "d_lse": d_lse, **case.options}
    assert_as_wanted(vjp(d_out, d_lse), *case.args, **call, computing=case.computing)


# ------------------------------------------------------------------------------------ against the formulas
@settings(max_examples=fewer(300))
@given(problems(), st.booleans())
def test_gradients_are_those_of_the_formulas(case: Case, with_lse: bool) -> None:
    assert_gradients(case, with_lse)


@settings(max_examples=fewer(300))
@given(problems(), SIDE, SIDE, st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_tiles_of_any_size_give_them(case: Case, rows: int, cols: int, height: int, shares: int, alone: bool) -> None:
    with in_tiles(rows, cols, height, shares, alone):
        assert_gradients(case)


@pytest.mark.parametrize("path", paths.PATHS, ids=lambda path: path.name)
@settings(max_examples=fewer(80))
@given(case=problems(), rows=SIDE, cols=SIDE)
def test_whatever_path_the_forward_pass_took(path: paths.Path, case: Case, rows: int, cols: int) -> None:
    with forced(path), in_tiles(rows, cols):
        assert_gradients(case)


# -------------------------------------------------------------------------------------- against differences
DIFFERENTIABLE = {
    "dtypes": ("float64", "float64", "float64"),
    "size_qk": "normal",
    "size_v": "normal",
    "wild": "none",
    "scale": st.none() | st.floats(-2, 2),
}


@settings(max_examples=fewer(100))
@given(problems(**DIFFERENTIABLE), SIDE, SIDE, st.integers(1, 2))
def test_gradients_agree_with_differences(case: Case, rows: int, cols: int, height: int) -> None:
    """All options at once, in float64."""
    names = [name for name in ("bias", "sinks") if isinstance(case.options.get(name), np.ndarray)]
    arrays = [case.q, case.k, case.v, *(case.options[name].astype(np.float64) for name in names)]

    assume(any(np.isfinite(x).any() for x in arrays))  # else nothing can be differed

    def f(q: Any, k: Any, v: Any, *others: Any) -> Any:
        options = case.options | dict(zip(names, others, strict=True))
        *results, vjp = hw.attention_vjp(q, k, v, case.mask, **options, return_lse=True, threads=1)

        def named(*gradients: Any) -> Any:
            got = vjp(*gradients)
            return (*got[:3], *(getattr(got, name) for name in names))

        return *results, named

    with in_tiles(rows, cols, height):
        check_vjp(f, arrays, tolerance=1e-7)
