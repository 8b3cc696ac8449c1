"""tools/compare_torch.py: what it draws and calls an error, what it does without PyTorch; with it, that all agree."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import headwise as hw

TOOL = Path(__file__).parents[1] / "tools" / "compare_torch.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("compare_torch", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(tool: Any, count: int = 200) -> list[Any]:
    rng = np.random.default_rng(0)
    return [tool.draw(rng) for _ in range(count)]


def without_torch(*arguments: str) -> Any:
    """Run the tool where PyTorch cannot be imported, installed or not."""
    code = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(TOOL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_without_torch_it_is_one_line_with_the_command_that_installs_it() -> None:
    ran = without_torch()
    assert ran.returncode == 2
    assert ran.stderr == "compare_torch: expected PyTorch, got no module 'torch'; pip install torch\n"
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("raise ImportError('libfoo.so: cannot open')", "(ImportError: libfoo.so: cannot open); pip install --force-"),
        ("import surely_absent", "(ModuleNotFoundError: No module named 'surely_absent'); pip install --force-"),
        ("import torch._C", "(ModuleNotFoundError: No module named 'torch._C'; 'torch' is not a package); pip install"),
        ("from torch import absent", "(ImportError: cannot import name 'absent' from"),
        ("raise OSError('libbar.so:\\nno such file')", "(OSError: libbar.so: no such file); pip install --force-"),
        ("raise RuntimeError('built for another NumPy')", "(RuntimeError: built for another NumPy); pip install"),
        ("1 +", "(SyntaxError: invalid syntax"),
        ("autograde = None", "a module 'torch' that is another one; pip install torch"),
    ],
)
def test_a_broken_torch_is_one_line_with_the_true_reason(tmp_path: Path, source: str, got: str) -> None:
    (tmp_path / "torch.py").write_text(source)
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path({str(TOOL)!r}, run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr.startswith("compare_torch: expected PyTorch, got ")
    assert got in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.endswith("torch\n")
    assert ran.stdout == ""


@pytest.mark.parametrize(("option", "least"), [("--count", 1), ("--seed", 0)])
@pytest.mark.parametrize("value", ["-1", "many", "1.5", ""])
def test_numbers_that_are_none(option: str, least: int, value: str) -> None:
    ran = without_torch(f"{option}={value}")
    assert ran.returncode == 2
    assert ran.stderr.endswith(f"argument {option}: expected an integer >= {least}, got '{value}'\n")


def test_configurations_come_from_the_seed_and_have_everything(tool: Any) -> None:
    found = drawn(tool)
    assert found == drawn(tool)
    for name in ("mask", "bias", "scale", "softcap"):
        given = [getattr(c, name) for c in found]
        assert 10 < sum(value is not None for value in given) < 190, name
    for name in ("causal", "sinks", "lse"):
        assert 10 < sum(getattr(c, name) for c in found) < 190, name
    assert {len(c.scores) for c in found} == {2, 3, 4, 5}
    grouped = [c for c in found if len(c.k) > 2 and c.k[-3] not in (1, c.lead[-1])]
    stretched = [c for c in found if len({x[:-3] for x in (c.q, c.k, c.v)}) > 1]
    plain = [c for c in found if not (c.softcap or c.sinks or c.lse)]
    assert min(len(grouped), len(stretched), len(plain)) > 20
    assert any(c.scale is not None and c.scale < 0 for c in found)
    problems = [tool.make(c) for c in found]
    dead = [problem for problem in problems if not problem.seen.any(axis=-1).all()]
    flagged = [c for c in plain if c.causal and c.mask is None and c.bias is None and c.scores[-1] == c.scores[-2]]
    assert len(dead) > 20
    assert len(flagged) > 3  # PyTorch's own causal flag


def test_every_configuration_is_attention_as_we_have_it(tool: Any) -> None:
    for c in drawn(tool, 40):
        problem = tool.make(c)
        q, k, v = (problem.inputs[name] for name in "qkv")
        options = {name: problem.inputs.get(name) for name in ("bias", "sinks")}
        steps = hw.attention_steps(q, k, v, problem.mask, **options, causal=c.causal, scale=c.scale, softcap=c.softcap)
        assert steps.scores.shape == c.scores
        assert np.array_equal(~np.isneginf(steps.masked), problem.seen)
        made = tool.ours(c, problem)
        assert {name: x.shape for name, x in made.items()} == {"out": problem.d_out.shape} | {
            f"d_{name}": x.shape for name, x in problem.inputs.items()
        }


def test_an_error_is_relative_to_the_largest_entry_unless_nearly_all_cancels(tool: Any) -> None:
    expected = np.array([1.0, -4.0])
    assert tool.distance(expected + 0.01, expected, np.zeros(2)) == pytest.approx(0.01 / 4)
    assert tool.distance(expected + 0.01, expected, np.array([0.0, 640.0])) == pytest.approx(0.01 / 40)
    assert tool.distance(np.zeros(2), np.zeros(2), np.zeros(2)) == 0
    assert tool.distance(np.full(2, 1e-9), np.zeros(2), np.zeros(2)) == np.inf
    assert tool.distance(np.array([np.nan, -4.0]), expected, expected) == np.inf
    assert tool.distance(expected[:1], expected, expected) == np.inf


def test_the_report_sums_up_and_names_the_worst(tool: Any) -> None:
    some, other = drawn(tool, 2)
    found = [tool.Compared(1e-6, "d_q", 0, some), tool.Compared(2e-6, "d_bias", 1, other)]
    line, worst = tool.report(found, 3, "torch 9").splitlines()
    assert line == "compare_torch: 2 configurations from seed 3, torch 9: all agree within 1e-05"
    assert worst == f"worst: 2e-06, d_bias of number 1: {other.words}"
    bad = [*found, tool.Compared(float("inf"), "d_k", 2, some), tool.Compared(1.1e-5, "d_k", 3, some)]
    line, worst = tool.report(bad, 3, "torch 9").splitlines()
    assert line.endswith(": 2 disagree by more than 1e-05")
    assert worst.startswith("worst: inf, d_k of number 2: q (")


def test_all_agree_with_an_installed_torch(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    assert tool.main(["--count", "50"]) == 0
    assert ": all agree within 1e-05\nworst: " in capsys.readouterr().out


def test_a_gradient_that_is_off_is_found(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    whole = hw.attention_vjp

    def off(*given: Any, **more: Any) -> Any:
        *head, vjp = whole(*given, **more)
        return *head, lambda *ups: (made := vjp(*ups))._replace(k=made.k * np.float32(1.0001))

    double: Any = ModuleType("headwise")
    double.attention_vjp, double.__version__ = off, hw.__version__
    monkeypatch.setattr(tool, "hw", double)
    assert tool.main(["--count", "20"]) == 1
