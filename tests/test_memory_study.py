"""The study of cache policies: workloads as traces, kernels bound by memory in graphs, and its figures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profilers.devices import find_device
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from replay.costs.calls import Call
from replay.costs.operators import operator_of
from replay.costs.shipped import load_parameters
from replay.graph.graph import TaskKind
from replay.memory.accesses import Accesses
from replay.memory.cache_layout import REUSE
from replay.memory.caches import Hierarchy
from replay.memory.graphs import known_operators, memory_of_kernels, simulated_kernels
from replay.memory.simulation import simulate, simulate_each
from replay.memory.streams import stream_of, time_steps
from replay.memory.streams.products import product
from replay.memory.streams.recurrent import cell
from replay.memory.system import find_policy, memory_system
from replay.plug_ins.caching import cache_policy
from replay.studies import caching
from replay.studies.caching import OPTIMISED, STATIC, CachingOutcome, class_of, figures, outcomes
from replay.studies.workloads import Workload, layer_graph, layer_trace, load_study
from replay.workloads.program import KernelCall
from seqpoint.validation.published import published_figures

PARAMETERS = load_parameters()
GPU = find_device("CachePolicy-GPU")
SYSTEM = memory_system(GPU)
ENTRY = """device = "CachePolicy-GPU"
[workloads.Soft]
class = "reuse-sensitive"
source = "a test"
phases = [{ times = 2, calls = [{ op = "aten::_softmax", kernel = "softmax", shapes = [[16, 64], [], []] }] }]
"""


def small(folder: Path, text: str = ENTRY) -> dict[str, Workload]:
    file = folder / "workloads.toml"
    file.write_text(text)
    return dict(load_study(file))


@pytest.mark.parametrize(
    ("call", "kind", "geometry", "read", "written"),
    [
        (Call("miopen::lrn", [[2, 4, 3, 5]]), "lrn", (2, 4, 15, 0), 480, 960),
        (Call("miopen::lrn_backward", [[2, 4, 3, 5]]), "lrn", (2, 4, 15, 1), 1920, 480),
        (
            Call("aten::_thnn_fused_lstm_cell_backward_impl", [[2, 8], [2, 8], [2, 8], [2, 8], [2, 32]]),
            "rnn", (2, 8, 4, 1), 8 * 64, 5 * 64,
        ),
        (Call("aten::_thnn_fused_gru_cell_backward", [[2, 8], [2, 40]]), "rnn", (2, 8, 3, 1), 6 * 64, 7 * 64),
    ],
)  # fmt: skip
def test_backward_cells_and_channel_norms_are_counted_and_have_streams(
    call: Call, kind: str, geometry: tuple[int, ...], read: int, written: int
) -> None:
    operator = operator_of(call)
    assert operator is not None
    assert (operator.kind, operator.geometry) == (kind, geometry)
    assert (operator.bytes_read, operator.bytes_written) == (read, written)
    stream = stream_of(operator)
    assert stream is not None and stream.footprint == read + written


def test_a_workspace_of_another_cell_is_unknown() -> None:
    assert operator_of(Call("aten::_thnn_fused_gru_cell_backward", [[2, 8], [2, 33]])) is None
    assert operator_of(Call("miopen::lrn", [[2, 4]])) is None


def test_the_study_has_17_workloads_whose_accesses_are_known() -> None:
    study = load_study()
    assert len(study) == 17
    assert {kind: sum(each.class_ == kind for each in study.values()) for kind in caching.CLASSES} == {
        "memory-insensitive": 3, "reuse-sensitive": 11, "throughput-sensitive": 3,
    }  # fmt: skip
    for workload in study.values():
        for call in set(workload.calls):
            types = ["double" if workload.element == "Double" else "float"] * (1 + len(call.operands))
            operator = operator_of(Call(call.op, [call.shape, *call.operands], types, call.values))
            assert operator is not None and stream_of(operator) is not None, (workload.name, call.op)


def test_a_graph_knows_the_operator_of_a_kernel_bound_by_memory_if_it_is_the_only_one() -> None:
    calls = [
        KernelCall("relu", "aten::relu", 10_000, 1500, shape=(64, 64)),
        KernelCall("sgemm", "aten::mm", 10_000, 1500, shape=(64, 64), operands=((64, 64),)),
        KernelCall("mystery", "my::op", 10_000, 1500, shape=(64, 64)),
    ]
    graph = layer_graph(layer_trace("layer", GPU, calls, world_size=1, element=("Float", 4)), PARAMETERS)
    rows = np.flatnonzero(graph.tasks.kind == TaskKind.KERNEL)
    kinds = [graph.operators[i].kind if i >= 0 else "" for i in known_operators(graph)[rows]]
    assert kinds == ["elementwise", "matmul", ""]
    # Models of contention and of other devices see products only, as before.
    assert (graph.tasks.operator[rows] >= 0).tolist() == [False, True, False]
    assert np.isnan(simulated_kernels(graph, PARAMETERS).time_ns[rows]).tolist() == [False, False, True]


def recurrent_calls(steps: int) -> list[KernelCall]:
    gates = KernelCall("sgemm", "aten::linear", 10_000, 1500, shape=(16, 128), operands=((512, 128),), workgroups=8)
    shapes = ((16, 512), (16, 128))
    pointwise = KernelCall("cell", "aten::_thnn_fused_lstm_cell", 5_000, 1500, shape=(16, 512), operands=shapes)
    return [gates, pointwise] * steps


def test_the_first_time_step_finds_cold_caches_and_later_ones_the_weights() -> None:
    trace = layer_trace("layer", GPU, recurrent_calls(4), world_size=1, element=("Float", 4))
    graph = layer_graph(trace, PARAMETERS)
    rows, results, number, in_step = memory_of_kernels(graph, PARAMETERS)
    order = np.argsort(graph.tasks.measured_start_ns[rows])
    products, cells = number[order][::2], number[order][1::2]
    assert in_step[order].tolist() == [False] * 2 + [True] * 6
    (note,) = [text for text in cache_policy("CacheR")(graph, PARAMETERS).notes if text.startswith("cache_policy")]
    assert "6 of them are time steps of recurrent networks" in note
    assert len(set(products[1:].tolist())) == 1 and products[0] != products[1]
    assert len(set(cells[1:].tolist())) == 1 and cells[0] != cells[1]
    cold, warm = results[products[0]], results[products[1]]
    assert cold is not None and warm is not None
    weights = 512 * 128 * 4 / SYSTEM.dram.access_bytes
    # Weights, and the hidden state that the last cell wrote.
    assert cold.counters["dram_reads"] - warm.counters["dram_reads"] == weights + 16 * 128 * 4 / 64


def test_gradients_of_weights_and_other_streams_are_no_time_steps() -> None:
    steps = recurrent_calls(3)
    gradient = replace(steps[0], op="aten::mm", shape=(512, 16), operands=((16, 128),))
    other = [replace(call, stream=9) for call in steps[::2]]
    for calls in ([each for pair in zip(steps[1::2], [gradient] * 3, strict=True) for each in pair], other):
        graph = layer_graph(layer_trace("layer", GPU, calls, world_size=1, element=("Float", 4)), PARAMETERS)
        _, results, number, in_step = memory_of_kernels(graph, PARAMETERS)
        assert not in_step.any()
        assert len(results) == len({call.op for call in calls})
        assert len(set(number.tolist())) == len(results)


def test_what_a_product_wrote_is_read_from_the_cache_only_if_stores_are_kept() -> None:
    kernels = time_steps(product((1, 16, 512, 128)), cell("lstm", 16, 128), steps=3)
    assert len(kernels) == 6
    reads = {}
    for policy in ("Uncached", "CacheR", "CacheRW", "CacheRW-AB-CR-PCby"):
        results = simulate_each(kernels, SYSTEM, find_policy(policy))
        reads[policy] = [results[-2].counters["dram_reads"], results[-1].counters["dram_reads"]]
    gates, state = 16 * 512 * 4 / 64, 16 * 128 * 4 / 64
    assert reads["CacheRW"] == [0, gates]  # input gates are new; gates and state of the step before are there
    assert reads["CacheR"][0] == state and reads["CacheR"][1] >= gates + state
    assert reads["Uncached"][0] > 512 * 128 * 4 / 64
    assert reads["CacheRW-AB-CR-PCby"] == reads["CacheRW"]


def test_rinsing_writes_back_one_row_of_a_memory_with_hashed_channels() -> None:
    caches = Hierarchy(SYSTEM, find_policy("CacheRW-AB-CR"), in_flight=64)
    dram = SYSTEM.dram
    assert dram.mapping == "xor" and dram.address_mapping.folds_channel
    rows = dram.row_bytes * dram.channels // SYSTEM.l2.line_bytes  # lines of one row of each channel
    line = np.arange(rows) + 5 * rows
    # Set by set, lines far away push the lines of these rows out.
    far = (np.arange(4 * SYSTEM.l2.size // SYSTEM.l2.line_bytes) + 10**6).astype(np.int64)
    order = np.concatenate([line, far])
    one = np.ones(len(order))
    stores = Accesses(
        order, one.astype(np.uint32), one.astype(np.uint8), 0 * one.astype(np.int16), 0 * one.astype(np.int32)
    )
    address = caches.access(stores).address
    written = address[(address >= line[0] * 64) & (address <= line[-1] * 64)]
    channel, group, bank, row = dram.address_mapping.decode(written)
    assert len(written) == rows and caches.counters.l2.rinsed > 0
    # The requests of a row follow each other: it is opened once.
    changes = np.count_nonzero(np.diff(channel) | np.diff(group) | np.diff(bank) | np.diff(row))
    assert changes == dram.channels - 1


def test_launches_teach_in_proportion_and_up_to_a_bound() -> None:
    caches = Hierarchy(SYSTEM, find_policy("CacheRW-AB-CR-PCby"), in_flight=4)
    lesson = np.zeros_like(caches.lesson)
    lesson[:6] = [6, 105, 0, 40, 1000, 400]
    caches.teach(lesson, 32)
    assert caches._state.numbers[REUSE : REUSE + 6].tolist() == [192, 3360, 0, 1280, 4000, 1600]


def test_stores_that_no_launch_used_again_bypass_from_the_first_one_on() -> None:
    stream = stream_of(operator_of(Call("aten::_softmax", [[256, 1024]], ["float"])))  # type: ignore[arg-type]
    assert stream is not None
    kept, bypassed = (simulate([stream], SYSTEM, find_policy(name)) for name in ("CacheRW-AB-CR", "CacheRW-AB-CR-PCby"))
    assert bypassed.counters["l2_bypasses"] > 0.9 * bypassed.counters["l2_stores"]
    assert kept.counters["l2_bypasses"] < 0.1 * kept.counters["l2_stores"]
    assert bypassed.counters["dram_writes"] == kept.counters["dram_writes"] == 256 * 1024 * 4 / 64


def test_outcomes_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, file = small(tmp_path), tmp_path / "results.jsonl"
    policies = ("Uncached", "CacheR", "CacheRW")
    whole = list(outcomes(study, PARAMETERS, policies=policies))
    begun = outcomes(study, PARAMETERS, policies=policies, file=file)
    first = next(begun)
    begun.close()
    assert [json.loads(line)["policy"] for line in file.read_text().splitlines()] == ["Uncached"]
    with file.open("ab") as lines:
        lines.write(b'{"workload": "Soft", "pol')  # cut by an interruption
    simulated = []
    run = caching.outcome
    monkeypatch.setattr(caching, "outcome", lambda w, p, **k: simulated.append(p) or run(w, p, **k))
    assert list(outcomes(study, PARAMETERS, policies=policies, file=file)) == whole
    assert first == whole[0] and sorted(simulated) == ["CacheR", "CacheRW"]
    assert len(file.read_text().splitlines()) == 3
    # Other parameters are other outcomes.
    fewer = PARAMETERS.with_values([("memory_simulation_accesses", 1000.0)])
    assert len(list(outcomes(study, fewer, policies=policies[:1], file=file))) == 1
    assert len(file.read_text().splitlines()) == 4
    file.write_text("no outcome\n")
    with pytest.raises(BrokenFileError, match="line 1 is no outcome of a workload"):
        next(outcomes(study, PARAMETERS, policies=policies, file=file))


def made(ns: dict[str, float], stalls: float = 0.0) -> dict[str, CachingOutcome]:
    return {
        policy: CachingOutcome("w", policy, 0, ns.get(policy, 100.0), 0.5, stalls, 1.0)
        for policy in (*STATIC, *OPTIMISED)
    }


@pytest.mark.parametrize(
    ("ns", "expected"),
    [
        ({}, "memory-insensitive"),
        ({"CacheR": 60.0}, "reuse-sensitive"),
        ({"CacheRW": 130.0}, "throughput-sensitive"),
        ({"CacheR": 60.0, "CacheRW": 130.0}, "reuse-sensitive"),
    ],
)
def test_classes_follow_from_the_static_policies(ns: dict[str, float], expected: str) -> None:
    assert class_of(made(ns)) == expected


def test_figures_count_workloads() -> None:
    study = load_study()
    by = {name: made({"CacheR": 50.0} if name == "FwBN" else {}) for name in study}
    by["FwAct"] = made({"CacheRW": 99.0})
    ours = figures(study, by)
    assert {figure.name for figure in published_figures("caching")} == set(ours)
    assert (ours["static_winners"], ours["optimised_matches"]) == (1.0, 16.0)
    assert (ours["memory_insensitive"], ours["reuse_sensitive"], ours["streaming_stores"]) == (3.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"reuse-sensitive"', '"sensitive"', "workloads.Soft: a class is one of memory-insensitive"),
        ('kernel = "softmax", ', "", "kernel"),
        ("aten::_softmax", "my::op", "Soft: the accesses of my::op of .16, 64. are unknown"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        small(tmp_path, ENTRY.replace(old, new))["Soft"].trace(PARAMETERS)
    with pytest.raises(NotFoundError):
        load_study(tmp_path / "none.toml")
