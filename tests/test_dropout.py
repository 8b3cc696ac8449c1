"""Dropout: a weight's fate depends on the key and its own place alone, and the places are independent of each other."""

import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import headwise as hw
from headwise.core import dropout
from headwise.core.dropout import CELL_KEYS, CELL_QUERIES, Keep

CELL = CELL_KEYS * CELL_QUERIES
PLACES = [(lead, row, column) for lead in range(7) for row in range(5) for column in range(11)]  # 385 cells
FAR_PLACES = [(2**20, 0, 0), (0, 2**20, 0), (0, 0, 2**20), (2**40, 2**30, 2**30)]


def keep(probability: float = 0.5, seed: int = 0) -> Keep:
    return Keep(probability, np.random.default_rng(seed))


def after(draws: int, seed: int = 0) -> Any:
    """The state of a generator after so many draws of a key."""
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        rng.integers(2**63)
    return rng.bit_generator.state


# ----------------------------------------------------------------------------------- a function of the place
def test_the_same_key_gives_the_same_cells() -> None:
    one, other = keep(), keep()
    for place in PLACES[:11] + FAR_PLACES:
        np.testing.assert_array_equal(one.cell(*place), other.cell(*place))


def test_another_key_gives_other_cells() -> None:
    agreement = np.mean(keep(seed=0).cell(0, 0, 0) == keep(seed=1).cell(0, 0, 0))
    assert abs(agreement - 0.5) < 5 * 0.5 / CELL**0.5


def test_the_order_of_asking_does_not_matter() -> None:
    source = keep()
    forwards = [source.cell(*place) for place in PLACES[:29]]
    backwards = [source.cell(*place) for place in reversed(PLACES[:29])]
    for one, other in zip(forwards, reversed(backwards), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    """Threads that take turns as often as they can, so that what they share shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_eager_threads")
def test_threads_do_not_matter() -> None:
    source = keep()
    places = PLACES * 3
    alone = [source.cell(*place) for place in places]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda place: source.cell(*place), places))
    wrong = sum(not np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
    assert wrong == 0, f"{wrong} of {len(places)} cells differ when several threads ask"


def test_a_seed_gives_the_same_fates_on_every_machine() -> None:
    assert (CELL_QUERIES, CELL_KEYS) == (256, 128)
    assert np.packbits(keep().cell(1, 2, 3)[:2, :32]).tobytes().hex() == "cc83bebfbfa1efd7"


def test_a_cell_is_a_bool_block_of_keys_by_queries() -> None:
    cell = keep().cell(0, 0, 0)
    assert cell.shape == (CELL_KEYS, CELL_QUERIES)
    assert cell.dtype == np.bool_


@pytest.mark.parametrize(
    "scores", [(5, 7), (3, 5, 7), (2, 3, 257, 131), (2, 1, 3, 2, 129), (521, 3), (2, 0, 3), (2, 3, 0)], ids=str
)
def test_dense_is_made_of_cells(scores: tuple[int, ...]) -> None:
    source = keep()
    dense = source.dense(scores)
    assert dense.shape == scores
    assert dense.dtype == np.bool_
    n_q, n_k = scores[-2:]
    if dense.size == 0:
        return
    for lead, place in enumerate(np.ndindex(*scores[:-2])):
        for i, j in itertools.product({*range(0, n_q, 37), n_q - 1}, {*range(0, n_k, 17), n_k - 1}):
            cell = source.cell(lead, i // CELL_QUERIES, j // CELL_KEYS)
            assert dense[place][i, j] == cell[j % CELL_KEYS, i % CELL_QUERIES]


EDGES = {"queries": (0, 1, 255, 256, 257, 300, 511, 512, 600), "keys": (0, 1, 127, 128, 129, 255, 256, 300)}
SPANS = {axis: list(itertools.combinations(ends, 2)) for axis, ends in EDGES.items()}


@pytest.mark.parametrize("lead", [0, 5])
def test_any_tile_is_its_block_of_the_whole(lead: int) -> None:
    """Tiles that begin and end on, before and after the edges of cells, or span several."""
    source = keep()
    dense = source.dense((2, 3, 600, 300)).reshape(6, 600, 300)[lead]
    choose = np.random.default_rng(2)
    for number, rows in enumerate(SPANS["queries"]):
        for cols in (SPANS["keys"][number % len(SPANS["keys"])], SPANS["keys"][choose.integers(len(SPANS["keys"]))]):
            tile = source.tile(lead, slice(*rows), slice(*cols))
            assert tile.dtype == np.bool_
            np.testing.assert_array_equal(tile, dense[slice(*rows), slice(*cols)].T)  # keys come first


def test_a_tile_far_out_is_its_cells() -> None:
    source, lead = keep(), 2**40
    row, column = 2**30, 2**20
    rows, cols = (
        slice(row * CELL_QUERIES - 1, row * CELL_QUERIES + 2),
        slice(column * CELL_KEYS - 2, column * CELL_KEYS + 1),
    )
    wanted = np.empty((3, 3), bool)
    wanted[2, 1:] = source.cell(lead, row, column)[0, :2]
    wanted[:2, 1:] = source.cell(lead, row, column - 1)[-2:, :2]
    wanted[2, :1] = source.cell(lead, row - 1, column)[0, -1:]
    wanted[:2, :1] = source.cell(lead, row - 1, column - 1)[-2:, -1:]
    np.testing.assert_array_equal(source.tile(lead, rows, cols), wanted)


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_an_empty_tile(size: tuple[int, int]) -> None:
    tile = keep().tile(0, slice(5, 5 + size[0]), slice(130, 130 + size[1]))
    assert tile.shape == (size[1], size[0])


def test_a_longer_sequence_leaves_the_fates_of_the_shorter() -> None:
    np.testing.assert_array_equal(keep().dense((300, 200))[:5, :7], keep().dense((5, 7)))


# --------------------------------------------------------------------------------------------- how many
@pytest.mark.parametrize(
    ("probability", "threshold"),
    [
        (0.25, 16384),
        (0.5, 32768),
        (0.1, 6554),
        (1e-9, 0),
        (2**-17, 0),
        (2**-16, 1),
        (0.9999, 65529),
        (1 - 1e-9, 65535),  # never all, unless it is asked for
        (1 - 2**-17, 65535),
        (1.0, 65536),
    ],
)
def test_probabilities_are_steps_of_65536(probability: float, threshold: int) -> None:
    source = keep(probability)
    assert source.threshold == threshold
    assert source.kept == 1 - threshold / 65536


def test_almost_none_and_all() -> None:
    assert keep(1e-9).cell(0, 0, 0).all()
    assert not keep(1.0).cell(0, 0, 0).any()
    rare = keep(1 - 1e-9).dense((7, 1500, 1500))
    assert abs(int(rare.sum()) - rare.size / 65536) < 5 * (rare.size / 65536) ** 0.5
    assert rare.any()


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_the_rate_is_the_probability(probability: float) -> None:
    source = keep(probability)
    counts = [int(source.cell(*place).sum()) for place in PLACES[:101]]
    deviation = (source.kept * (1 - source.kept)) ** 0.5
    n = len(counts) * CELL
    assert abs(sum(counts) - n * source.kept) < 5 * deviation * n**0.5
    assert max(abs(count - CELL * source.kept) for count in counts) < 5 * deviation * CELL**0.5 + 1


def test_a_larger_probability_drops_more_of_the_same() -> None:
    little, much = keep(0.1).cell(0, 0, 0), keep(0.4).cell(0, 0, 0)
    assert (little | ~much).all()
    assert little.sum() > much.sum()


# ------------------------------------------------------------------------------------------ independence
def test_no_two_cells_are_alike() -> None:
    """All pairs of nearly 400 cells agree in half of their bits, within 5 standard deviations."""
    source = keep(0.5, seed=3)
    cells = np.stack([source.cell(*place).ravel() for place in PLACES + FAR_PLACES])
    signs = cells.astype(np.float32) * 2 - 1
    correlation = signs @ signs.T / CELL**0.5  # in standard deviations: agreements less disagreements
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    "step", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, -1), (64, 0, 0), (4096, 0, 0)], ids=str
)
def test_neighbours_are_independent(step: tuple[int, int, int], probability: float) -> None:
    source = keep(probability)
    both = n = 0
    for lead, row, column in itertools.product(range(3), range(1, 4), range(1, 4)):
        here = source.cell(lead, row, column)
        there = source.cell(lead + step[0], row + step[1], column + step[2])
        both, n = both + int((here & there).sum()), n + CELL
    expected = source.kept**2
    assert abs(both - n * expected) < 5 * (n * expected * (1 - expected)) ** 0.5


@pytest.mark.parametrize("axis", [0, 1], ids=["keys", "queries"])
@pytest.mark.parametrize("lag", [1, 2, 4, 64])
def test_neighbours_within_a_cell_are_independent(lag: int, axis: int) -> None:
    source = keep(0.5)
    signs = np.stack([source.cell(*place) for place in PLACES[:29]]).astype(np.float32) * 2 - 1
    signs = np.moveaxis(signs, 1 + axis, 0)
    product = signs[lag:] * signs[:-lag]
    assert abs(float(product.sum(dtype=np.float64))) < 5 * product.size**0.5


def test_stretches_of_the_stream_do_not_overlap() -> None:
    places = [*itertools.product(range(64), range(32), range(32)), *FAR_PLACES]
    starts = sorted(
        sum(n * stride for n, stride in zip(place, dropout._STRIDES, strict=True)) % 2**128 for place in places
    )
    gaps = [b - a for a, b in itertools.pairwise([*starts, starts[0] + 2**128])]
    assert min(gaps) >= dropout._DRAWS


# --------------------------------------------------------------------------------------------- the key
@pytest.mark.parametrize("probability", [1e-9, 0.5, 1.0])
def test_one_number_is_drawn(probability: float) -> None:
    rng = np.random.default_rng(0)
    source = Keep(probability, rng)
    source.dense((2, 300, 200))
    assert rng.bit_generator.state == after(1)


@pytest.mark.parametrize(("probability", "draws"), [(0, 0), (0.0, 0), (1e-9, 1), (0.5, 1), (1, 1)])
def test_attention_draws_one_number_or_none(probability: float, draws: int) -> None:
    rng = np.random.default_rng(0)
    x = np.ones((2, 3, 5, 7))
    hw.scaled_dot_product_attention(x, x, x, dropout=probability, rng=rng)
    assert rng.bit_generator.state == after(draws)


def test_a_seed_is_its_generator() -> None:
    x = np.random.default_rng(1).standard_normal((3, 5, 7))
    one, _ = hw.scaled_dot_product_attention(x, x, x, dropout=0.5, rng=11)
    other, _ = hw.scaled_dot_product_attention(x, x, x, dropout=0.5, rng=np.random.default_rng(11))
    np.testing.assert_array_equal(one, other)


def test_one_generator_gives_new_keys_call_by_call() -> None:
    rng = np.random.default_rng(0)
    x = np.random.default_rng(1).standard_normal((5, 7))
    one, other = (hw.scaled_dot_product_attention(x, x, x, dropout=0.5, rng=rng)[0] for _ in range(2))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "bits", [np.random.MT19937, np.random.Philox, np.random.PCG64DXSM], ids=lambda bits: bits.__name__
)
def test_any_generator_will_do(bits: Any) -> None:
    one, other = (Keep(0.5, np.random.Generator(bits(7))) for _ in range(2))
    np.testing.assert_array_equal(one.cell(0, 0, 0), other.cell(0, 0, 0))


# ------------------------------------------------------------------------------------------ in attention
@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7), (2, 3, 5, 7)], ids=str)
def test_attention_drops_weights_and_divides_by_the_rest(shape: tuple[int, ...]) -> None:
    q, k, v = (np.random.default_rng(n).standard_normal(shape) for n in range(3))
    out, weights = hw.scaled_dot_product_attention(q, k, v, dropout=0.25, rng=13)
    source = keep(0.25, seed=13)
    np.testing.assert_allclose(out, (weights * source.dense(weights.shape) / 0.75) @ v, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(weights, hw.scaled_dot_product_attention(q, k, v)[1])  # those before dropout


def test_all_dropped_is_zero() -> None:
    x = np.ones((3, 5, 7))
    out, _ = hw.scaled_dot_product_attention(x, x, x, dropout=1, rng=0)
    np.testing.assert_array_equal(out, np.zeros((3, 5, 7)))


def test_the_mean_stays_where_it_was() -> None:
    q, v = np.zeros((499, 1)), np.ones((503, 1))
    out, _ = hw.scaled_dot_product_attention(q, np.zeros((503, 1)), v, dropout=0.3, rng=0)
    assert abs(out.mean() - 1) < 5 * (0.3 / 0.7 / (499 * 503)) ** 0.5 + 1e-4  # the probability is a step of 1/65536
