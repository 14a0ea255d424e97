"""Pairs of alone and overlapped launches: traces of a few kernels with the pairs worked out by hand."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING
from profilers.trace.schema import make_table
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta
from replay.contention import ContentionPairs, PairOptions, measure_pairs

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces"
GEMM, ADD, NCCL = "ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
#: A kernel or a copy: (name, stream, start in us, duration in us), and other columns.
Work = tuple[str, int, float, float] | tuple[str, int, float, float, dict[str, Any]]


def rows(kernels: list[Work], first: int, **default: Any) -> dict[str, list[Any]]:
    """Return columns of kernels or copies with ids from `first` on."""
    plain = [{**default, **(row[4] if len(row) > 4 else {})} for row in kernels]  # type: ignore[misc]
    columns = {name: [row.get(name) for row in plain] for name in sorted({name for row in plain for name in row})}
    columns |= {"id": list(range(first, first + len(kernels))), "name": [row[0] for row in kernels]}
    columns |= {"stream": [row[1] for row in kernels]}
    return columns | {key: [round(row[i] * 1000) for row in kernels] for i, key in ((2, "start_ns"), (3, "dur_ns"))}


def trace_of(kernels: list[Work], copies: list[Work] | None = None, **tables: Any) -> Trace:
    """Return a trace of kernels with ids from 100 and copies with ids from 500, on device 0 of rank 0 if not told.

    Each kernel has an operator of its own, and all operators have the same shapes.
    """
    default = {"workgroups": 108, "workgroup_size": 256, "rank": 0, "device": 0}
    own = [(*row[:4], {"op_id": i, **(row[4] if len(row) > 4 else {})}) for i, row in enumerate(kernels)]  # type: ignore[misc]
    ops = {"id": list(range(len(kernels))), "rank": [0] * len(kernels), "name": ["aten::mm"] * len(kernels)}
    ops |= {"start_ns": [0] * len(kernels), "shapes": ["[[64,64],[64,64]]"] * len(kernels)}
    content = {"kernels": make_table("kernels", rows(own, 100, **default)), "ops": make_table("ops", ops)}
    if copies:
        content["copies"] = make_table("copies", rows(copies, 500, rank=0, device=0))
    devices = tuple(DeviceProperties(rank, 0, "NVIDIA A100-SXM4-80GB") for rank in range(2))
    return Trace(TraceMeta("kineto", ranks=(0, 1), devices=devices), {**content, **tables} if kernels else tables)


def alone(count: int, at: float = 0.0, us: float = 10.0, **more: Any) -> list[Work]:
    """Return GEMMs of `us`, one every 100 us from `at` on."""
    return [(GEMM, 7, at + 100 * i, us, more) for i in range(count)]


def all_told(pairs: ContentionPairs) -> int:
    """Return the number of launches in pairs, alone and excluded."""
    return len(pairs.event) + pairs.alone + sum(pairs.excluded.values())


def test_a_launch_beside_a_collective_is_compared_with_the_alone_launches() -> None:
    beside: list[Work] = [(NCCL, 20, 990, 60, {"workgroups": 24}), (GEMM, 7, 1000, 16), (ADD, 7, 1020, 5)]
    trace = trace_of([*alone(4), (ADD, 7, 400, 4), *beside])
    pairs = measure_pairs(trace)
    assert pairs.event.tolist() == [106]
    assert (pairs.rank.tolist(), pairs.iteration.tolist()) == ([0], [MISSING])
    assert (pairs.duration_ns.tolist(), pairs.alone_ns.tolist()) == ([16_000.0], [10_000.0])
    assert pairs.slowdown.tolist() == [1.6]
    assert (pairs.partner_event.tolist(), pairs.partner_share.tolist()) == ([105], [1.0])
    assert pairs.partners.to_pylist() == [
        {
            **{"name": NCCL, "kind": "collective", "class": "collective", "collective": None, "workgroups": 24},
            **{"workgroup_size": 256, "registers": None, "lds_bytes": None, "bytes": None, "n": 1},
        }
    ]
    used, few = pairs.groups.to_pylist()
    assert (used["name"], used["class"], used["device"], used["rank"]) == (GEMM, "gemm", "NVIDIA A100-SXM4-80GB", None)
    assert (used["n_alone"], used["n_overlapped"], used["ratio"], used["status"]) == (4, 1, 1.6, "used")
    assert (few["name"], few["n_alone"], few["ratio"], few["status"]) == (ADD, 1, 1.25, "too few alone")
    assert pairs.excluded == {"communication": 1, "too few alone": 2}
    assert (pairs.launches, pairs.alone, all_told(pairs)) == (8, 4, 8)


def test_a_launch_next_to_other_streams_is_neither_alone_nor_overlapped() -> None:
    others: list[Work] = [
        *[("Memcpy HtoD", 9, at, us, {"bytes": 5000}) for at, us in ((510.5, 5), (590, 9.5), (695, 10), (790, 30))]
    ]
    pairs = measure_pairs(trace_of(alone(9), others))
    assert pairs.event.tolist() == [
        108
    ]  # the copies end and begin 0.5 us beside two GEMMs, and cover half of the third
    assert pairs.excluded == {"close neighbor": 2, "partly overlapped": 1}
    assert pairs.partners.select(["name", "kind", "class", "bytes"]).to_pylist() == [
        {"name": "Memcpy HtoD", "kind": "copy", "class": "", "bytes": 4096}
    ]
    wider = measure_pairs(trace_of(alone(9), others), PairOptions(min_gap_ns=400, min_overlap=0.5))
    assert (wider.event.tolist(), wider.alone, dict(wider.excluded)) == ([107, 108], 7, {})


@pytest.mark.parametrize(
    "kernels",
    [[], alone(5), [(GEMM, 7, 0, 0)], [(NCCL, 20, 0, 50)], [(GEMM, 7, 0, 10), (GEMM, 8, 0, 10)]],
    ids=["no kernels", "one stream", "no duration", "communication alone", "never alone"],
)
def test_a_trace_without_pairs_says_why(kernels: list[Work]) -> None:
    pairs = measure_pairs(trace_of(kernels))
    assert len(pairs.event) == len(pairs.partner) == pairs.alone == pairs.partners.num_rows == 0
    assert sum(pairs.excluded.values()) == pairs.launches == len(kernels)
    assert np.isnan(pairs.noise)


def test_bad_options_are_told() -> None:
    for options in ({"min_alone": 1}, {"min_overlap": 0.0}, {"max_scatter": 0.0}, {"min_gap_ns": -1}):
        with pytest.raises(InvalidInputError):
            PairOptions(**options)


def test_every_launch_counts_once() -> None:
    generator = np.random.default_rng(3)
    names, starts = (GEMM, ADD, NCCL), np.sort(generator.integers(0, 4000, 300))
    work: list[Work] = [
        (names[i % 3], int(generator.integers(1, 4)), float(start), float(generator.integers(0, 20)), {"rank": i % 2})
        for i, start in enumerate(starts)
    ]
    pairs = measure_pairs(trace_of(work), PairOptions(max_scatter=10))
    assert all_told(pairs) == pairs.launches == 300
    assert len(set(pairs.event.tolist())) == len(pairs.event) > 0
    assert Counter(pairs.partner.tolist()) == dict(enumerate(pairs.partners["n"].to_pylist()))
