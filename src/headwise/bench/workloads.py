"""The workloads: of each, what makes its inputs, runs ours, counts, and compares, as a row of a table."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from headwise.bench import agreement, arrays, peers, serving
from headwise.bench.arrays import Inputs, Made, Run
from headwise.bench.cases import Case
from headwise.core.plan import attention_plan


def _planned_bytes(case: Case, inputs: Inputs, threads: int) -> int | None:
    """What attention_plan promises; gradients have no plan."""
    if case.timed != "forward":
        return None
    chosen = arrays.options(case, inputs) | {"rng": np.random.default_rng(0) if case.dropout else None}
    return int(attention_plan(inputs.q, inputs.k, inputs.v, **chosen, threads=threads).bytes)


def _unplanned(case: Case, inputs: Any, threads: int) -> None:
    return None


class Workload(NamedTuple):
    """A kind of measurement; a new one is a new row of WORKLOADS, and in `Peer.workloads` of those who have it."""

    make: Callable[..., Any]  # case, seed=0 -> inputs
    ours: Callable[[Case, Any, int], Run]  # case, inputs, threads
    operations: Callable[[Case, Any], int]  # of the products, over visible pairs
    check_ours: Callable[[Case, Any, Made], None]  # with the definition in float64
    check_peer: Callable[[Case, Any, Made, Made], None]  # a peer's with ours
    planned_bytes: Callable[[Case, Any, int], int | None] = _unplanned


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "attention": Workload(
            arrays.make,
            peers.ours,
            arrays.operations,
            agreement.check_ours,
            agreement.check_peer,
            _planned_bytes,
        ),
        "prefill": Workload(
            serving.make_prompt,
            serving.prefill,
            serving.prefill_operations,
            serving.check_prefill,
            serving.check_alike,
        ),
        "layer": Workload(
            serving.make_tokens,
            serving.layer,
            serving.layer_operations,
            serving.check_layer,
            serving.check_alike,
        ),
        "layer-weights": Workload(
            serving.make_tokens,
            serving.layer_with_weights,
            serving.layer_operations,
            serving.check_layer,
            serving.check_alike,
        ),
        "packed": Workload(
            serving.make_packed,
            serving.packed,
            serving.packed_operations,
            serving.check_packed,
            serving.check_padded,
        ),
    }
)


def of(case: Case) -> Workload:
    """Return the workload of a case."""
    return WORKLOADS[case.what]
