"""`replay.gemms.groups`: products that need nothing of each other, by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import join_execution_trace

from profilers.ingest.pipeline import collect
from profilers.trace.kernels import CLASSES
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph
from replay.from_trace.tasks import storages_of_arguments
from replay.gemms.groups import CHAIN, UNKNOWN_SHAPE, independent_gemms
from replay.graph.assembly import Assembly
from replay.graph.graph import PHASES, KernelGraph, Storages
from replay.graph.operators import Operator, attention, batched_matmul, rowwise, streaming

DATA = Path(__file__).parents[2] / "shared/data/traces"
TOKENS, WIDTH, INNER, RANK = 512, 1024, 2816, 16
CLASS_OF = {"matmul": "gemm", "batched_matmul": "gemm"}


def product(m: int, n: int, k: int, batch: int = 1) -> Operator:
    return batched_matmul(batch, m, n, k, 2)


def pointwise(elements: int) -> Operator:
    return streaming("elementwise", 2 * elements, 2 * elements, elements, 2)


SQUARE = product(TOKENS, WIDTH, WIDTH)
ATTENTION = attention((1, 16, TOKENS, 64), (16, TOKENS))
Kernel = Operator | None | tuple[Operator | None, str]


def stream(kernels: Sequence[Kernel], *, phase: str = "forward", names: Sequence[str] = ()) -> KernelGraph:
    """Return a stream of kernels, each an operator (None: unknown shape), or it and the operator that launched it."""
    pairs = [kernel if isinstance(kernel, tuple) else (kernel, f"op {row}") for row, kernel in enumerate(kernels)]
    known = tuple(dict.fromkeys(operator for operator, _ in pairs if operator is not None))
    number = [known.index(operator) if operator is not None else -1 for operator, _ in pairs]
    class_ = [
        CLASSES.index("other" if operator is None else CLASS_OF.get(operator.kind, operator.kind))
        for operator, _ in pairs
    ]
    is_product = np.array(class_) == CLASSES.index("gemm")
    assembly = Assembly()
    texts = [*(names or [f"kernel {row}" for row in range(len(pairs))])]
    launched = assembly.number_names(np.arange(len(pairs)), [by for _, by in pairs])
    columns = {
        "duration_ns": 1e4,
        "class_": class_,
        "operator": np.where(is_product, number, -1),
        "memory_operator": np.where(is_product, -1, number),
        "phase": PHASES.index(phase),
        "launched_by": launched,
    }
    assembly.chain(
        assembly.tasks(assembly.number_names(np.arange(len(pairs)), texts), assembly.lane(device=0), columns)
    )
    return replace(assembly.graph(), operators=known)


def found(graph: KernelGraph) -> list[tuple[tuple[int, ...], str]]:
    return [(group.gemms, group.evidence) for group in independent_gemms(graph).groups]


GATE, DOWN = product(TOKENS, INNER, WIDTH), product(TOKENS, WIDTH, INNER)
LOW, HIGH = product(TOKENS, RANK, WIDTH), product(TOKENS, WIDTH, RANK)
KEY = product(TOKENS, 256, WIDTH)
#: Backward of a layer of 512 x 1024 by 1024 x 2816.
GRADIENTS = (product(TOKENS, WIDTH, INNER), product(INNER, WIDTH, TOKENS))
BIAS, SILU = (pointwise(TOKENS * WIDTH), "aten::add_"), pointwise(TOKENS * INNER)


@pytest.mark.parametrize(
    ("kernels", "groups"),
    [
        ([SQUARE, SQUARE, SQUARE, ATTENTION], [((0, 1, 2), "assumed")]),
        ([SQUARE, BIAS, SQUARE, BIAS, SQUARE, BIAS, ATTENTION], [((0, 2, 4), "assumed")]),
        ([SQUARE, SQUARE, SQUARE], []),  # layers of equal width, without attention
        ([SQUARE, pointwise(TOKENS * WIDTH), SQUARE, ATTENTION], []),  # a normalisation of the first, say
        ([SQUARE, KEY, KEY, ATTENTION], [((0, 1, 2), "assumed")]),  # fewer heads for key and value
        ([KEY, KEY, ATTENTION], [((0, 1), "shapes")]),
        ([GATE, SILU, GATE, SILU, DOWN], [((0, 2), "shapes")]),
        ([GATE, SILU, DOWN], []),
        ([GATE, (None, "x"), GATE], []),  # a kernel of unknown shape may write anything
        ([SQUARE, LOW, HIGH], [((0, 1), "assumed")]),
        ([LOW, HIGH], []),
        ([product(64, 64, 64, 16), rowwise("softmax", 1024, 64, 2), product(64, 64, 64, 16)], []),
        ([product(TOKENS, 3 * WIDTH, WIDTH), product(TOKENS, 64, 2 * WIDTH)], []),  # a slice of the result
        ([product(96, INNER, WIDTH), product(160, INNER, WIDTH)], [((0, 1), "shapes")]),  # experts of 96 and 160 tokens
    ],
)
def test_groups_of_the_forward_pass(kernels: list[Kernel], groups: list[tuple[tuple[int, ...], str]]) -> None:
    assert found(stream(kernels)) == groups


def test_gradients_of_one_layer_are_independent_in_the_backward_pass_alone() -> None:
    assert found(stream(GRADIENTS, phase="backward")) == [((0, 1), "gradients")]
    assert found(stream(GRADIENTS)) == []
    two = (*GRADIENTS, SILU, *GRADIENTS)
    assert found(stream(two, phase="backward")) == [((0, 1), "gradients"), ((3, 4), "gradients")]


def test_what_a_product_launches_beside_its_kernel_belongs_to_it() -> None:
    names = ["Memset (Device)", "gemm", "splitKreduce_kernel"] * 2
    kernels: list[Kernel] = [(None, "aten::mm"), (GATE, "aten::mm"), (GATE, "aten::mm")] * 2
    (group,) = independent_gemms(stream(kernels, names=names)).groups
    assert group.gemms == (1, 4) and group.runs == ((0, 1, 2), (3, 4, 5))


def test_products_in_no_group_are_counted_with_the_reason() -> None:
    graph = stream([GATE, SILU, DOWN])
    assert independent_gemms(graph).others == {CHAIN: 2}
    nameless = graph.with_tasks(operator=np.full(3, -1))
    assert independent_gemms(nameless).others == {UNKNOWN_SHAPE: 2}
    assert independent_gemms(stream([SILU])).others == {}


def test_products_on_two_streams_at_one_time_are_a_group() -> None:
    graph = stream([SQUARE, SQUARE])
    lanes = (*graph.lanes, replace(graph.lanes[0], number=1))
    apart = replace(graph, lanes=lanes, edges=graph.edges.select(np.zeros(1, dtype=bool)))
    assert found(apart.with_tasks(lane=np.array([0, 1]))) == [((0, 1), "streams")]


def with_storages(graph: KernelGraph, *uses: tuple[set[int], set[int]] | None) -> KernelGraph:
    storages = {row: Storages(frozenset(use[0]), frozenset(use[1])) for row, use in enumerate(uses) if use}
    return replace(graph.with_tasks(event=np.arange(len(uses))), storages=storages)


def test_an_execution_trace_tells_what_products_depend_on() -> None:
    squares = stream([SQUARE, SQUARE])  # by sizes the second may read the first
    assert found(squares) == []
    assert found(with_storages(squares, ({1, 2}, {3}), ({1, 4}, {5}))) == [((0, 1), "dependencies")]
    assert found(with_storages(squares, ({1, 2}, {3}), ({3, 4}, {5}))) == []
    # A second product that writes what the first reads must wait, too; so must one of unknown tensors, by size.
    assert found(with_storages(squares, ({1, 2}, {3}), ({1, 4}, {2}))) == []
    assert found(with_storages(squares, ({1, 2}, {3}), None)) == []
    # By sizes the products are free; by tensors the second reads what the kernel between computed from the first.
    between = stream([GATE, SILU, GATE])
    assert found(with_storages(between, ({1, 2}, {3}), ({3}, {6}), ({6, 4}, {5}))) == []
    assert found(with_storages(between, ({1, 2}, {3}), ({7}, {6}), ({6, 4}, {5}))) == [((0, 2), "dependencies")]


def test_groups_end_at_steps_phases_and_collectives() -> None:
    graph = stream([GATE, GATE])
    for column in ({"iteration": np.array([0, 1])}, {"phase": np.array([0, 1])}):
        assert found(graph.with_tasks(**column)) == []
    assert found(graph) == [((0, 1), "shapes")]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the traces in shared/data")
def test_a_trace_of_a_recommender_has_pairs_of_gradients() -> None:
    trace = collect(sorted((DATA / "kineto/dlrm8").glob("*.json.gz"))[:1])
    graph = build_graph(trace, 10, parameters=load_parameters())
    groups = independent_gemms(graph).groups
    assert {group.evidence for group in groups} == {"gradients"}
    # The interaction's batched products, and the layers of both networks.
    assert len(groups) == 7 and all(len(group.gemms) == 2 for group in groups)
    # The tensors of its execution trace bear out each pair, and no other.
    joined = join_execution_trace(trace, collect(sorted((DATA / "chakra/dlrm8").glob("*.json.gz"))[:1]))
    graph = build_graph(joined, 10, parameters=load_parameters())
    kernels = set(graph.tasks.event[graph.on_device() & (graph.tasks.launched_by >= 0)].tolist())
    assert kernels and kernels <= graph.storages.keys()
    proven = independent_gemms(graph).groups
    assert [group.gemms for group in proven] == [group.gemms for group in groups]
    assert {group.evidence for group in proven} == {"dependencies"}


@pytest.mark.parametrize(
    "text", ["[1", "{}", '{"execution_trace": 3}', '{"execution_trace": {"inputs": {"values": [7]}}}']
)
def test_an_operator_without_readable_tensors_has_no_storages(text: str) -> None:
    assert storages_of_arguments(text) is None


def test_an_operator_that_returns_nothing_may_write_what_it_reads() -> None:
    tensors = [[[1, 8, 0, 4, 4, "cuda:0"], [[2, 9, 0, 4, 4, "cuda:0"]], [0, 0, 0, 0, 0, ""], 0.5]]
    for values, writes in (([], {8, 9}), ([[3, 7, 0, 4, 4, "cuda:0"]], {7})):
        node = {"inputs": {"values": tensors}, "outputs": {"values": values}}
        assert storages_of_arguments(json.dumps({"execution_trace": node})) == Storages(
            frozenset({8, 9}), frozenset(writes)
        )
