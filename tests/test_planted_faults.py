"""Known mistakes, planted one by one in a copy of the package: the tests must go red for each, and stay green without.

A row is a name and the replacements that plant the mistake: (file, right text, wrong text). The right text must occur
exactly once, so that a row cannot go stale unnoticed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headwise

PACKAGE = Path(headwise.__file__).parent
TESTS = Path(__file__).parent
JUDGES = ["test_facts.py", "test_design.py", "test_multihead.py"]

ATTENTION, SHAPES, MASKS = "core/attention.py", "core/shapes.py", "core/masks.py"
LAYER, SOFTMAX = "layers/multihead.py", "core/softmax.py"
MASKED = "masked = biased if visible is None else np.where(visible, biased, -np.inf)"
WEIGHTS = "weights, lse = softmax(masked), logsumexp(masked)"
SCORES = "_scaled(q, np.swapaxes(k, -1, -2), p.scale)"

FAULTS = {
    "mask after softmax": [
        (ATTENTION, WEIGHTS, "weights, lse = softmax(biased) * (1 if visible is None else visible), logsumexp(masked)")
    ],
    "mask with 0": [(ATTENTION, MASKED, MASKED.replace("-np.inf", "0.0"))],
    "mask with -1e9": [(ATTENTION, MASKED, MASKED.replace("-np.inf", "-1e9"))],
    "mask multiplied": [(ATTENTION, MASKED, "masked = biased if visible is None else biased * visible")],
    "no scale": [(SHAPES, "return 1.0 / float(np.sqrt(d_k)) if d_k else 1.0", "return 1.0")],
    "scale 1/d": [(SHAPES, "return 1.0 / float(np.sqrt(d_k)) if d_k else 1.0", "return 1.0 / d_k if d_k else 1.0")],
    "scale 0 taken as unset": [(SHAPES, "    if scale is None:\n", "    if not scale:\n")],
    "d_model scale": [
        (
            LAYER,
            "attention_steps(q_heads, k_heads, v_heads, causal=causal)",
            "attention_steps(q_heads, k_heads, v_heads, causal=causal, scale=x.shape[-1] ** -0.5)",
        )
    ],
    "softmax over axis -2": [(ATTENTION, WEIGHTS, WEIGHTS.replace("softmax(masked)", "softmax(masked, -2)"))],
    "polarity": [(ATTENTION, MASKED, MASKED.replace("np.where(visible", "np.where(~visible"))],
    "missing transpose of k": [
        (ATTENTION, SCORES, SCORES.replace("np.swapaxes(k, -1, -2)", "k.reshape(*k.shape[:-2], *k.shape[:-3:-1])"))
    ],
    "missing transpose when merging heads": [
        (
            LAYER,
            "return together.reshape(*lead, n, n_heads * d_head)",
            "return heads.reshape(*lead, n, n_heads * d_head)",
        )
    ],
    "reshape straight to (b, h, n, d)": [
        (
            LAYER,
            "return np.swapaxes(apart, -3, -2)  # (..., H, n, d_head)",
            "return x.reshape(*lead, n_heads, n, d_model // n_heads)",
        )
    ],
    "masked NaN in v": [(SOFTMAX, "if visible is None or np.isfinite(v).all():", "if True:")],
    "upper-left alignment": [
        (SHAPES, "own = scores[-1] - scores[-2] if offset is None", "own = 0 if offset is None"),
    ],
    "causal off by one": [(MASKS, 'mask = _Band("causal", None, 0,', 'mask = _Band("causal", None, 1,')],
    "lengths against heads": [
        (SHAPES, "values = values.reshape((*batch, *heads, *tail))", "values = values.reshape((*heads, *batch, *tail))")
    ],
    "heads tiled, not repeated": [
        (
            ATTENTION,
            "grouped = a.reshape(*a.shape[:-3], n_groups, n_heads // n_groups, *a.shape[-2:])",
            "grouped = np.swapaxes(a.reshape(*a.shape[:-3], n_heads // n_groups, n_groups, *a.shape[-2:]), -4, -3)",
        )
    ],
    "mask replaces causal": [(ATTENTION, "if p.causal else []", "if p.causal and p.mask is None else []")],
    "softcap after the mask": [
        (ATTENTION, "capped = scores if p.softcap is None", "capped = scores if True"),
        (
            ATTENTION,
            WEIGHTS,
            f"masked = p.softcap * np.tanh(masked / p.softcap) if p.softcap else masked\n        {WEIGHTS}",
        ),
    ],
    "-inf in the bias leaks a masked NaN": [
        (ATTENTION, "hidden = None if p.bias is None else", "hidden = None if True else")
    ],
    "no maximum taken off": [
        (SOFTMAX, "peak = np.maximum.reduce(scores, axis=-1, initial=-np.inf)", "peak = np.zeros(scores.shape[:-1])")
    ],
    "a dead row is NaN": [
        (
            SOFTMAX,
            "np.divide(numerator, np.maximum(total, _TINIEST[total.dtype.char]), out",
            "np.divide(numerator, total, out",
        )
    ],
    "sinks in the numerator": [(ATTENTION, "softmax(with_sink)[..., :-1]", "softmax(with_sink)[..., 1:]")],
    "dropout not scaled": [(ATTENTION, "/ weights.dtype.type(keep.kept or 1)", "/ 1")],
    "weights after dropout": [(ATTENTION, "masked, _cast(weights, p),", "masked, _cast(kept, p),")],
    "half types computed as they are": [
        (SHAPES, "return FLOAT64 if dtype.itemsize == 8 else FLOAT32", "return dtype.newbyteorder('=')")
    ],
    "float32 inside": [(SHAPES, "computing = computing_dtype(dtype) or FLOAT64", "computing = FLOAT32")],
    "w transposed": [(LAYER, "q, k, v = x @ w_q, x @ w_k, x @ w_v", "q, k, v = x @ w_q, x @ w_k, x @ w_v.T")],
    "w_o forgotten": [(LAYER, "out = merged @ w_o", "out = merged")],
    "inputs written to": [(ATTENTION, "    scores = _scaled(", "    q *= p.computing.type(1)\n    scores = _scaled(")],
}


def judge(package):
    """Run the judging tests against a package; return pytest's exit code and what it printed."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(TESTS / name) for name in JUDGES)],
        env={**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def copied(tmp_path):
    return Path(shutil.copytree(PACKAGE, tmp_path / "headwise", ignore=shutil.ignore_patterns("__pycache__", "data")))


def test_without_a_fault_the_copy_is_green_and_is_what_runs(copied):
    code, text = judge(copied)
    assert code == 0, text
    (copied / "__init__.py").write_text("raise RuntimeError('the copy is imported')\n")
    assert "the copy is imported" in judge(copied)[1]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_makes_tests_fail(fault, copied):
    for name, right, wrong in FAULTS[fault]:
        path = copied / name
        source = path.read_text()
        assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times in {name}"
        path.write_text(source.replace(right, wrong))
    code, text = judge(copied)
    assert code == 1, text
    assert re.search(r"^FAILED ", text, re.M), text
