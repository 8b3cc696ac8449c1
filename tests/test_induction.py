"""The small transformer, and the example that trains it: gradients, steps, scores; what the shipped weights can do."""

import importlib.util
import io
import math
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import bits

import headwise as hw
from headwise import induction
from headwise.core.shapes import Array
from headwise.files import FileError, read_arrays
from headwise.induction import HeadScore
from headwise.testing import check_vjp

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "induction.py"
DATA = Path(str(files("headwise"))) / "data"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("induction_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained() -> dict[str, Array]:
    return frozen(induction.load())


@pytest.fixture(scope="module")
def found(trained: dict[str, Array]) -> induction.Examined:
    return induction.examine(trained, seed=0)


def frozen(weights: dict[str, Array]) -> dict[str, Array]:
    for weight in weights.values():
        weight.flags.writeable = False
    return weights


def tiny(seed: int = 0) -> dict[str, Array]:
    """Weights in float64: 7 tokens, 11 positions, d_model 5, 3 heads of width 2, 2 layers."""
    shapes = {"embed": (7, 5), "position": (11, 5), "unembed": (5, 7), "w_o": (2, 3, 2, 5)}
    shapes |= dict.fromkeys(("w_q", "w_k", "w_v"), (2, 3, 5, 2))
    rng = np.random.default_rng(seed)
    return frozen({name: rng.standard_normal(shapes[name]) for name in induction.WEIGHTS})


TOKENS = np.array([[3, 1, 5, 3, 1, 5], [0, 6, 2, 0, 6, 2]])


# ------------------------------------------------------------------------------------------- sequences
@pytest.mark.parametrize("half", [2, 17, 64])
def test_a_sequence_is_different_tokens_and_the_same_again(half: int) -> None:
    tokens = induction.repeated(np.random.default_rng(0), 5, half)
    assert tokens.shape == (5, 2 * half)
    assert np.array_equal(tokens[:, :half], tokens[:, half:])
    assert all(len(set(row.tolist())) == half for row in tokens)
    assert tokens.min() >= 0
    assert tokens.max() < len(set(induction.NAMES)) == induction.N_TOKENS == 64
    assert len({bits(row) for row in tokens}) == 5


@pytest.mark.parametrize("half", [1, 65])
def test_halves_that_cannot_be(half: int) -> None:
    with pytest.raises(ValueError, match=f"^repeated: half: expected 2 to 64, since .* different ones, got {half}$"):
        induction.repeated(np.random.default_rng(0), 1, half)


def test_sequences_to_judge_by_are_not_those_of_training() -> None:
    assert np.array_equal(induction.unseen(3, 4, 16), induction.unseen(3, 4, 16))
    assert not np.array_equal(induction.unseen(3, 4, 16), induction.unseen(4, 4, 16))
    assert not np.array_equal(induction.unseen(3, 4, 16), induction.repeated(np.random.default_rng(3), 4, 16))


def test_what_can_be_predicted_is_the_second_half_but_its_first_token() -> None:
    queries, following = induction.predictions(TOKENS)
    assert np.array_equal(following, TOKENS[:, 4:])
    assert np.array_equal(TOKENS[:, queries], TOKENS[:, 3:5])


# ------------------------------------------------------------------------------------- the forward pass
def test_forward_is_multi_head_attention_on_a_residual_stream() -> None:
    weights = tiny()
    x = weights["embed"][TOKENS] + weights["position"][2:8]
    for i in range(2):
        heads_last = [weights[name][i].transpose(1, 0, 2).reshape(5, 6) for name in ("w_q", "w_k", "w_v")]
        q, k, v = ((x @ w).reshape(2, 6, 3, 2).swapaxes(1, 2) for w in heads_last)
        out, _ = hw.scaled_dot_product_attention(q, k, v, causal=True)
        x = x + out.swapaxes(1, 2).reshape(2, 6, 6) @ weights["w_o"][i].reshape(6, 5)
    steps = induction.forward(weights, TOKENS, start=2)
    np.testing.assert_allclose(steps.x, x, atol=1e-12)
    np.testing.assert_allclose(steps.logits, x @ weights["unembed"], atol=1e-12)
    assert not np.allclose(induction.forward(weights, TOKENS).logits, steps.logits)


def test_no_token_knows_a_later_one() -> None:
    weights, other = tiny(), TOKENS.copy()
    other[:, 4] = 4
    before, after = (induction.forward(weights, tokens).logits for tokens in (TOKENS, other))
    np.testing.assert_allclose(before[:, :4], after[:, :4], atol=1e-12)
    assert not np.allclose(before[:, 4:], after[:, 4:])


def test_loss_and_accuracy_are_of_the_predictions_alone() -> None:
    logits = np.full((1, 6, 7), 50.0) * np.arange(7)  # elsewhere, all is wrong
    logits[0, 3] = [0, math.log(2), 0, 0, 0, 0, 0]  # 1 follows: 2 of 8
    logits[0, 4] = [0, 0, math.log(10), 0, 0, math.log(4), 0]  # 5 follows: 4 of 19
    judged = induction.judge(logits, TOKENS[:1])
    assert judged.loss == pytest.approx((math.log(8 / 2) + math.log(19 / 4)) / 2)
    assert judged.accuracy == 0.5


# -------------------------------------------------------------------------------------------- gradients
def whole(example: Any, start: int) -> Any:
    """The loss as a function of all weights, in the order of WEIGHTS, and its vjp."""

    def f(*weights: Array) -> tuple[Array, Any]:
        loss, gradients = example.loss_and_gradients(dict(zip(induction.WEIGHTS, weights, strict=True)), TOKENS, start)
        return np.array(loss), lambda d_loss: tuple(d_loss * gradients[name] for name in induction.WEIGHTS)

    return f


def test_the_gradient_of_every_weight_is_that_of_differences(example: Any) -> None:
    weights = tiny()
    assert check_vjp(whole(example, start=3), [weights[name] for name in induction.WEIGHTS]) < 1e-9


def test_gradients_have_the_shapes_and_types_of_their_weights(example: Any) -> None:
    weights = {name: weight.astype(np.float32) for name, weight in tiny().items()}
    loss, gradients = example.loss_and_gradients(weights, TOKENS, start=5)
    assert loss == pytest.approx(induction.judge(induction.forward(weights, TOKENS, 5).logits, TOKENS).loss, rel=1e-6)
    described = {name: (x.shape, x.dtype) for name, x in gradients.items()}
    assert described == {name: (x.shape, x.dtype) for name, x in weights.items()}
    assert not gradients["position"][:5].any()
    assert not gradients["embed"][4].any()  # does not occur
    assert all(gradient.any() for gradient in gradients.values())


# -------------------------------------------------------------------------------------------- training
def test_adam_by_hand(example: Any) -> None:
    weights = {"w": np.array([1.0, -2.0, 3.0])}
    adam = example.Adam(weights)
    adam.step(weights, {"w": np.array([1e-3, -5.0, 0.0])}, 0.1)
    np.testing.assert_allclose(weights["w"], [0.9, -1.9, 3.0], atol=1e-5)  # steps as long as the rate
    adam.step(weights, {"w": np.array([-1e-3, -5.0, 0.0])}, 0.1)
    mean, square = (0.1 * -1e-3 + 0.9 * 0.1 * 1e-3) / (1 - 0.9**2), 1e-6
    np.testing.assert_allclose(weights["w"], [0.9 - 0.1 * mean / math.sqrt(square), -1.8, 3.0], atol=1e-5)


def test_the_loss_of_a_few_sequences_falls_when_they_are_trained_on(example: Any) -> None:
    weights = example.initial_weights(np.random.default_rng(0))
    tokens, adam, losses = induction.repeated(np.random.default_rng(1), 4, 8), example.Adam(weights), []
    for _ in range(25):
        loss, gradients = example.loss_and_gradients(weights, tokens)
        adam.step(weights, gradients, 1e-2)
        losses.append(loss)
    assert losses[0] > 3
    assert losses[-1] < 0.3 * losses[0]
    assert {weight.dtype for weight in weights.values()} == {np.dtype(np.float32)}


def test_training_comes_from_its_seed(example: Any) -> None:
    told: list[tuple[int, float]] = []
    first, again, other = (example.train(seed, 2, lambda *now: told.append(now)) for seed in (0, 0, 1))
    assert [step for step, _ in told] == [1, 2] * 3
    assert told[:2] == told[2:4] != told[4:]
    assert all(np.array_equal(first[name], again[name]) for name in induction.WEIGHTS)
    assert not np.array_equal(first["w_q"], other["w_q"])
    assert {name: x.shape for name, x in first.items()} == {name: x.shape for name, x in induction.load().items()}


def test_lengths_and_starts_differ_from_batch_to_batch(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second half is found by position alone, which is no induction."""
    seen: list[tuple[int, int]] = []

    def watched(weights: dict[str, Array], tokens: Array, start: int) -> tuple[float, dict[str, Array]]:
        seen.append((tokens.shape[1] // 2, start))
        return 0.0, {}

    monkeypatch.setattr(example, "loss_and_gradients", watched)
    example.train(0, 400, lambda *_: None)
    halves, starts = zip(*seen, strict=True)
    assert set(halves) == set(range(16, 65))
    assert len(set(starts)) > 80
    assert all(start >= 0 and start + 2 * half <= induction.N_POSITIONS for half, start in seen)
    assert max(start + 2 * half for half, start in seen) > induction.N_POSITIONS - 8


# ----------------------------------------------------------------------------------------------- scores
def test_a_perfect_previous_token_head() -> None:
    weights = np.eye(6, k=-1)
    weights[0, 0] = 1
    assert induction.on_previous(weights) == 1
    assert induction.on_successor(weights) == 0


def test_a_perfect_induction_head() -> None:
    weights = np.zeros((6, 6))
    weights[[0, 1, 2], 0] = 1
    weights[3, 1] = weights[4, 2] = 1  # of a b c a b c: from the second a to the first b, from b to c
    assert induction.on_successor(weights) == 1
    weights[5] = 1 / 6  # after the last token nothing can be predicted
    assert induction.on_successor(weights) == 1
    weights[4] = [0.25, 0, 0.5, 0.25, 0, 0]
    assert induction.on_successor(weights) == 0.75
    assert induction.on_previous(weights) == pytest.approx((1 + 0 + 0 + 0.25 + 1 / 6) / 5)


def test_scores_are_means_over_sequences_for_each_layer_and_head() -> None:
    weights = np.zeros((2, 2, 3, 4, 4))  # (layers, B, H, n, n)
    weights[1, 0, 2, 2, 1] = 0.5
    weights[0, :, 1] = np.eye(4, k=-1)
    weights[0, 1, 1] /= 2
    scores = induction.head_scores(list(weights))
    assert [score[:2] for score in scores] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert scores[1][2:4] == (0.75, 0.75)
    assert scores[5][2:4] == (0.5 / 3 / 2, 0.25)
    assert all(math.isnan(score.without) for score in scores)


def test_a_silenced_head_writes_nothing_and_the_others_all() -> None:
    weights = tiny()
    steps = induction.forward(weights, TOKENS)
    silent = induction.forward(induction.without(weights, 1, 2), TOKENS)
    written = steps.layers[1].heads[:, 2] @ weights["w_o"][1, 2]
    np.testing.assert_allclose(steps.x - silent.x, written, atol=1e-12)
    assert np.array_equal(steps.layers[1].heads, silent.layers[1].heads)
    assert weights["w_o"][1, 2].all()


def test_the_leading_heads() -> None:
    scores = [HeadScore(0, 0, 0.2, 0.1), HeadScore(0, 1, 0.9, 0.0), HeadScore(1, 0, 0.1, 0.8)]
    assert induction.leading(scores) == (scores[1], scores[2])


# ---------------------------------------------------------------------------------- the shipped weights
def test_the_weights_are_small_whole_and_float32(trained: dict[str, Array]) -> None:
    assert (DATA / "induction.npz").stat().st_size <= 250_000
    assert sorted(read_arrays(DATA / "induction.npz")) == sorted(induction.WEIGHTS)
    assert {weight.dtype for weight in trained.values()} == {np.dtype(np.float32)}
    assert all(np.isfinite(weight).all() for weight in trained.values())


@pytest.mark.parametrize(("half", "seed"), [(16, 0), (40, 1), (64, 2)])
def test_the_repeated_half_is_predicted(trained: dict[str, Array], half: int, seed: int) -> None:
    tokens = induction.unseen(seed, 32, half)
    for start in (0, 32):  # the last positions are seldom trained
        judged = induction.judge(induction.forward(trained, tokens, start).logits, tokens)
        assert judged.loss < 0.2
        assert judged.accuracy > 0.97


def test_the_first_half_is_not(trained: dict[str, Array]) -> None:
    """What cannot be known is not: the accuracy is no fault of measuring."""
    tokens = induction.unseen(0, 32, 64)
    likeliest = induction.forward(trained, tokens).logits[:, :63].argmax(axis=-1)
    assert (likeliest == tokens[:, 1:64]).mean() < 0.05


def test_there_is_a_previous_token_head_and_then_an_induction_head(found: induction.Examined) -> None:
    previous, successor = induction.leading(found.heads)
    assert (previous.layer, successor.layer) == (0, 1)
    assert previous.previous > 0.7
    assert successor.induction > 0.8
    assert max(head.induction for head in found.heads if head.layer == 0) < 0.1  # else it goes by position


def test_nothing_is_there_before_training(example: Any) -> None:
    found = induction.examine(example.initial_weights(np.random.default_rng(0)), seed=0, count=8, half=32)
    assert found.judged.accuracy < 0.1
    assert max(max(head.previous, head.induction) for head in found.heads) < 0.3


def test_without_the_previous_token_head_nothing_works(found: induction.Examined) -> None:
    previous, _ = induction.leading(found.heads)
    assert previous.without < 0.2
    assert found.judged.accuracy > 0.97
    assert all(head.without > 0.7 for head in found.heads if head != previous)


@pytest.mark.parametrize("layer", [0, 1])
def test_without_a_layer_nothing_works(trained: dict[str, Array], layer: int) -> None:
    silent: Any = trained
    for head in range(induction.N_HEADS):
        silent = induction.without(silent, layer, head)
    tokens = induction.unseen(0, 16, 64)
    assert induction.judge(induction.forward(silent, tokens).logits, tokens).accuracy < 0.2


def test_the_readme_shows_what_these_weights_do(found: induction.Examined) -> None:
    """Up to what other processors round."""
    shown = re.findall(r"^ +(\d) +(\d) +(\d\.\d+) +(\d\.\d+) +([\d.]+)%$", (ROOT / "README.md").read_text(), re.M)
    assert len(shown) == len(found.heads)
    for row, head in zip(np.array(shown, float), found.heads, strict=True):
        np.testing.assert_allclose(row, [*head[:4], 100 * head.without], atol=1)
        np.testing.assert_allclose(row[:4], head[:4], atol=0.02)


# -------------------------------------------------------------------------------------------- the command
def never(*_: Any) -> Any:
    raise AssertionError("trained all the same")


def test_it_trains_writes_and_reports(example: Any, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    assert example.main(["--steps", "2", "--seed", "3", "--out", str(path)]) == 0
    text, errors = capsys.readouterr()
    assert errors == f"step 2 of 2: loss {re.search(r'loss (.*)', errors)[1]}\n"  # type: ignore[index]
    assert "\njudged    the repeated half of 64 new sequences of 2 x 64 tokens\nloss      " in text
    assert re.search(r"^ +2 +\d\.\d{3}  █+", text, re.MULTILINE)
    assert re.search(r"^ +1 +3 +0\.\d\d +0\.\d\d +\d\.\d%$", text, re.MULTILINE)
    assert text.count("|\n") == 32  # the picture of one head
    written = read_arrays(path)
    expected = example.train(3, 2, lambda *_: None)
    assert all(np.array_equal(written[name], expected[name]) for name in induction.WEIGHTS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.npz"]


def test_the_mean_loss_is_of_the_steps_since_the_last(
    example: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(seed: int, n_steps: int, tell: Any) -> dict[str, Array]:
        for step in range(1, n_steps + 1):
            tell(step, float(step))
        return {}

    monkeypatch.setattr(example, "train", counting)
    assert example.watched(0, 230) == ({}, [(100, 50.5), (200, 150.5), (230, 215.5)])
    assert capsys.readouterr().err.splitlines()[-1] == "step 230 of 230: loss 215.500"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_the_loss(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stderr", terminal)
    example.watched(0, 3)
    assert re.search(r"\rtraining, loss \d\.\d{3}  \[#{7} +\]  33%", terminal.getvalue())
    assert "step 3 of 3" not in terminal.getvalue()


@pytest.mark.parametrize(("option", "name"), [("--out", "old.npz"), ("--picture", "old.png")])
def test_an_existing_file_is_refused_before_any_work(
    example: Any, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    monkeypatch.setattr(example, "train", never)
    (tmp_path / name).write_bytes(b"precious")
    assert example.main([option, str(tmp_path / name)]) == 2
    text, errors = capsys.readouterr()
    assert text == ""
    assert re.fullmatch(rf"induction: .*{name}: expected a new name, got one that exists; .*--force\n", errors)
    assert (tmp_path / name).read_bytes() == b"precious"


def test_force_replaces_weights(example: Any, tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(b"old")
    assert example.main(["--steps", "1", "--out", str(path), "--force"]) == 0
    assert set(read_arrays(path)) == set(induction.WEIGHTS)


def test_without_matplotlib_a_picture_is_refused_before_any_work(
    example: Any, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "train", never)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert example.main(["--picture", str(tmp_path / "out.png")]) == 2
    says = (
        r"induction: heatmap: expected matplotlib, got no module 'matplotlib[.\w]*'; pip install \"headwise\[plot\]\"\n"
    )
    assert re.fullmatch(says, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["--seed", "-1"], ["--seed", "x"], ["--steps", "0"], ["--steps", "1.5"], ["more"], ["--bogus"]]
)
def test_mistakes_with_its_options(example: Any, capsys: Capture, arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        example.main(arguments)
    assert re.search(
        r"induction: error: (argument --\w+: expected an integer >= |unrecognized)", capsys.readouterr().err
    )


def test_an_interrupt_is_one_line(example: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(example, "train", interrupted)
    assert example.main([]) == 130
    assert capsys.readouterr() == ("", "induction: interrupted\n")


def test_a_damaged_file_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "induction.npz").write_bytes(b"half of it")
    monkeypatch.setattr(induction.importlib.resources, "files", lambda _: tmp_path)
    with pytest.raises(FileError, match=r"induction\.npz: expected an undamaged file, got "):
        induction.load()
