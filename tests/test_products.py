"""Products with weights: right, the same for any number of threads, of any layout, and off the BLAS's own threads."""

import numpy as np
import pytest

from headwise.core import products, workers
from headwise.core.products import Product, column_sums, over_tokens, project, project_all


def normal(*shape, seed=0, dtype=float):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def by_loops(x, w, b=None):
    flat = x.reshape(-1, x.shape[-1])
    out = [
        [sum(row[i] * w[i, j] for i in range(len(w))) + (0 if b is None else b[j]) for j in range(w.shape[1])]
        for row in flat
    ]
    return np.array(out).reshape(*x.shape[:-1], w.shape[1])


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5)])
def test_numbers(shape):
    x, w, b = normal(*shape), normal(5, 7, seed=1), normal(7, seed=2)
    np.testing.assert_allclose(project(x, w), by_loops(x, w), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(project(x, w, b), by_loops(x, w, b), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("x", "w"), [((0, 5), (5, 7)), ((2, 0, 5), (5, 7)), ((3, 5), (5, 0)), ((3, 0), (0, 7))])
def test_nothing(x, w):
    out = project(np.ones(x), np.ones(w), np.ones(w[1]))
    assert out.shape == (*x[:-1], w[1])
    assert (out == 1).all()  # the bias alone, where there is anything


# Cut into rows, into columns, into both; none.
SIZES = [(700, 40, 30), (1, 2048, 2100), (300, 1000, 1100), (3, 5, 7)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_same_bits_for_any_number_of_threads(size, dtype):
    n, d_in, d_out = size
    x, w, b = normal(n, d_in, dtype=dtype), normal(d_in, d_out, seed=1, dtype=dtype), normal(d_out, seed=2, dtype=dtype)
    alone = project(x, w, b, threads=1)
    assert alone.dtype == dtype
    for threads in (2, 3, None):
        np.testing.assert_array_equal(project(x, w, b, threads=threads), alone)
    exact = x.astype(float) @ w.astype(float) + b
    np.testing.assert_allclose(alone, exact, rtol=0, atol=np.finfo(dtype).eps * 8 * np.sqrt(d_in) * np.abs(exact).max())


def test_blocks_cover_everything_once_and_are_many_where_there_is_much_to_do():
    counts = []
    for n, d_in, d_out in SIZES:
        out = np.zeros((n, d_out))
        blocks = products._blocks(Product(np.empty((n, d_in)), np.empty((d_in, d_out))), out)
        for block in blocks:
            block.out[...] += 1
            assert block.x.shape == (len(block.out), d_in)
            assert block.w.shape == (d_in, block.out.shape[1])
        assert (out == 1).all()
        counts.append(len(blocks))
    assert counts == [3, 2, 4, 1]


def test_tasks_go_to_workers_and_small_ones_stay(monkeypatch):
    threads, run = [], workers.run
    monkeypatch.setattr(workers, "run", lambda start, tasks, n: (threads.append(n), run(start, tasks, n)))
    monkeypatch.setattr(workers, "default_threads", lambda: 5)
    project(np.ones((3, 5)), np.ones((5, 7)))
    project(np.ones((700, 300)), np.ones((300, 300)))
    assert threads == [1, 5]


@pytest.mark.skipif(not workers.state().blas, reason="this BLAS cannot be limited")
def test_the_blas_has_one_thread_inside(monkeypatch):
    seen = []
    multiply = products._multiply

    def noted(block):
        seen.extend(library.ask() for library in workers._limit.libraries)
        multiply(block)

    monkeypatch.setattr(products, "_multiply", noted)
    project(normal(700, 40), normal(40, 30), threads=2)
    assert set(seen) == {1}


LAYOUTS = {
    "transposed": lambda x: x.T.copy().T,
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "columns of something wider": lambda x: np.concatenate([x, x], axis=1)[:, : x.shape[1]],
    "stretched": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_of_either(layout):
    x, w = layout(normal(6, 5)), layout(normal(5, 7, seed=1))
    for given in (x, w):
        given.flags.writeable = False
    np.testing.assert_allclose(project(x, w), by_loops(x, w), rtol=1e-13, atol=1e-13)


def test_several_at_once_are_each_as_alone():
    x, y = normal(2, 3, 5), normal(4, 6)
    some = [Product(x, normal(5, 7, seed=1), normal(7, seed=2)), Product(y, normal(6, 2, seed=3))]
    for out, product in zip(project_all(some, threads=2), some, strict=True):
        np.testing.assert_array_equal(out, project(*product))
    assert project_all([]) == []


def test_sums_over_tokens():
    x, d_out = normal(2, 3, 5), normal(2, 3, 7, seed=1)
    outer, sums = project_all([over_tokens(x, d_out), column_sums(d_out)])
    wanted = [
        [sum(x[b, n, i] * d_out[b, n, j] for b in range(2) for n in range(3)) for j in range(7)] for i in range(5)
    ]
    np.testing.assert_allclose(outer, wanted, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(sums, [[sum(d_out[b, n, j] for b in range(2) for n in range(3)) for j in range(7)]])


def test_overflow_is_silent_under_a_strict_error_state():
    with np.errstate(all="raise"):
        assert project(np.full((1, 2), 1e300), np.full((2, 1), 1e300)) == np.inf
