"""The examples of cached generation and of cross attention print what they say; steps give what a whole run gives."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import headwise as hw
from headwise import induction

FOLDER = Path(__file__).parents[1] / "examples"


def test_the_generated_tokens_are_those_of_the_first_half(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "generate.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "% right" in line] == ["100% right"]
    assert printed[-1].startswith("KVCache(batch=4, n_kv_heads=4, capacity=40, d_k=16")
    shown = [line[8:] for line in printed if line.startswith(("to come", "said"))]
    assert shown[::2] == shown[1::2]
    assert len(shown) == 8


def test_steps_give_the_logits_of_a_whole_run() -> None:
    example = runpy.run_path(str(FOLDER / "generate.py"))
    weights, half = example["WEIGHTS"], example["HALF"]
    tokens = induction.unseen(3, 2, half)
    caches = [hw.KVCache(2, example["N_HEADS"], 2 * half, example["D_HEAD"]) for _ in range(example["N_LAYERS"])]
    said, logits = example["generate"](tokens[:, : half + 1], half - 1, caches)
    whole = induction.forward(weights, np.concatenate([tokens[:, : half + 1], said], axis=1)).logits
    np.testing.assert_allclose(logits, whole[:, half:-1], rtol=0, atol=2e-4 * np.abs(whole).max())
    assert all((cache.lengths == 2 * half - 1).all() for cache in caches)


def test_cross_attention_does_not_see_padding(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "cross_attention.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "out (2, 5, 32), weights (2, 4, 5, 7)\n" in printed
    assert "weights of padding      0.0\n" in printed
    assert "as each pair alone      True\n" in printed


def test_a_deep_model_served_is_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(FOLDER / "deep_model.py"))
    example["main"].__globals__.update(N_LAYERS=4, D_MODEL=96, D_HEAD=8, PROMPT=48, CHUNK=20, STEPS=30)
    example["main"]()
    prompt, steps, caches, furthest = capsys.readouterr().out.splitlines()
    assert prompt.startswith("prompt of 48 tokens in chunks of 20: ")
    assert steps.startswith("30 steps: ")
    assert caches == "caches: 0.1 MiB, 1 KiB a token"
    far, size = (float(number) for number in furthest.rpartition(": ")[2].split(" of "))
    assert far < 4 * 64 * np.finfo(np.float32).eps * size


def test_a_batch_served_is_each_item_alone(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "serve_batch.py"), run_name="__main__")
    lines = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [what.strip() for what, _ in lines] == ["chunks and steps", "two tokens anew", "other beams", "in a window"]
    assert all(float(far) < 1e-12 for _, far in lines)


@pytest.mark.parametrize(
    ("served", "broken"),
    [
        ("reset(padding=PADDING)", "reset()"),
        ("cache.lengths - 2", "cache.lengths - 3"),
        ("cache.reorder(BEAMS)", "cache.reorder(BEAMS[::-1])"),
        ("window=WINDOW) for", "window=WINDOW - 1) for"),
        ("causal=True", "causal=cache is None"),
    ],
)
def test_a_batch_served_wrongly_is_noticed(capsys: pytest.CaptureFixture[str], served: str, broken: str) -> None:
    text = (FOLDER / "serve_batch.py").read_text()
    assert text.count(served) == 1
    exec(compile(text.replace(served, broken), "serve_batch.py", "exec"), {"__name__": "__main__"})
    assert max(float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()) > 1e-3
