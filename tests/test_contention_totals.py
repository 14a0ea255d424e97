"""Time that contention took: traces of a few kernels with the sums worked out by hand, and how commands show them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run
from test_contention_pairs import ADD, GEMM, NCCL, Event, collective, copy, gemms, kernel, reductions, trace_of
from traces import write_trace

import seqpoint as sp
from profilers.ingest.pipeline import collect
from profilers.trace.schema import make_table
from profilers.trace.store import save_trace
from profilers.trace.trace import Trace, TraceMeta
from replay.contention import measure_pairs
from replay.contention.totals import contention_time, iteration_graphs, with_pairs
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph
from replay.graph.graph import Basis, KernelGraph
from seqpoint.breakdown import contention_lines, contention_table
from seqpoint.graphs import contention_of

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"


def job(*more: Event, copies: list[Event] | None = None) -> Trace:
    """Return four GEMMs of 10 us alone, then one of 16 us beside a collective, in an iteration of 2 ms."""
    events = [*gemms(4), collective(990, 60), kernel(GEMM, 1000, 16), *more]
    events = [replace_columns(each, iteration=1) for each in events]
    trace = trace_of(events, copies)
    iterations = {"rank": [0], "iteration": [1], "start_ns": [0], "dur_ns": [2_000_000], "name": ["step"]}
    iterations |= {"found_by": ["annotation"]}
    return replace(trace, tables={**trace.tables, "iterations": make_table("iterations", iterations)})


def replace_columns(event: Event, **columns: Any) -> Event:
    return event._replace(columns={**event.columns, **columns})


def graph_with(trace: Trace, isolated_ns: dict[int, float]) -> KernelGraph:
    """Return the graph of iteration 1 in which some kernels, by id, have an isolated duration, and others their own."""
    graph = build_graph(trace, 1, parameters=load_parameters())
    spans = graph.tasks.measured_end_ns - graph.tasks.measured_start_ns
    duration = np.where(np.isnan(spans), graph.tasks.duration_ns, spans)
    basis = np.full(len(spans), int(Basis.MEASURED))
    for event, ns in isolated_ns.items():
        duration[graph.tasks.event == event], basis[graph.tasks.event == event] = ns, int(Basis.MODELLED)
    return graph.with_tasks(duration_ns=duration, basis=basis)


def test_pairs_are_measured_and_other_launches_are_modelled() -> None:
    """The GEMM of 16 us takes 10 us alone; an addition of 9 us, half of it beside the collective, has no pair."""
    trace = job(kernel(ADD, 1045.5, 9, stream=8))
    time = contention_time(trace, [graph_with(trace, {105: 12_000.0, 106: 7_000.0})])
    assert (time.kernels, time.kernel_ns) == (6, 65_000)
    total = time.total
    assert (total.launches, total.time_ns, total.beside_ns) == (2, 25_000, 16_000 + 4_500)
    assert (total.measured_launches, total.measured_time_ns, total.measured_ns) == (1, 16_000, 6_000)
    assert (total.modelled_launches, total.modelled_time_ns, total.modelled_ns) == (1, 9_000, 2_000)
    assert (total.contention_ns, total.unknown_launches) == (8_000, 0)
    # The clock has steps of 500 ns, so a time of 10 us is known to a third of that.
    # For the measured launch the model says 16 us - 12 us, where 6 us were measured.
    assert (time.total.model_ratio, time.noise, time.confounded) == (pytest.approx(4 / 6), pytest.approx(1 / 60), "")
    assert [(row.label, row.contention_ns) for row in time.by_class] == [("gemm", 6_000), ("elementwise", 2_000)]
    assert [(row.label, row.launches, row.time_ns) for row in time.by_partner] == [(NCCL, 2, 25_000)]


def test_launches_without_a_pair_or_a_graph_are_unknown() -> None:
    trace = job(kernel(ADD, 1045.5, 9, stream=8))
    time = contention_time(trace, [])
    assert (time.total.measured_ns, time.total.modelled_launches, time.total.unknown_launches) == (6_000, 0, 1)
    assert np.isnan(time.total.model_ratio) and time.to_dict()["model_ratio"] is None
    assert "contention of 1 launch is unknown" in contention_lines(time, "here")[-1]


def test_faster_launches_count_as_they_are_measured() -> None:
    """Beside a copy, three GEMMs take 9, 9 and 16 us: 1, 1 and -6 us less than alone; noise is not cut off."""
    beside = [kernel(GEMM, 2000 + 100 * i, us) for i, us in enumerate((9.0, 9.0, 16.0))]
    trace = job(*beside, copies=[copy(1990, 400)])
    time = contention_time(trace, [])
    assert time.total.measured_ns == 6_000 - 1_000 - 1_000 + 6_000
    assert {row.label: row.measured_ns for row in time.by_partner} == {NCCL: 6_000, "Memcpy HtoD": 4_000}


def test_confounded_pairs_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = job()
    pairs = replace(measure_pairs(trace), confounded="Kernels are faster than alone.")
    monkeypatch.setattr("replay.contention.totals.measure_pairs", lambda _: pairs)
    graph = graph_with(trace, {105: 12_000.0})
    time = contention_time(trace, [graph])
    assert (time.total.measured_launches, time.total.modelled_ns) == (0, 4_000)
    assert "neither measures contention" in contention_lines(time, "here")[1]
    assert with_pairs(graph, pairs) is graph


def test_collectives_are_counted_without_their_wait() -> None:
    """Four all-reduces take 100 us alone. The fifth takes 150 us, of which 140 us beside a GEMM on each rank.

    Rank 1 comes 300 us later to each, and ends when rank 0 ends.
    """
    spans = [(1000.0 * i, 1000.0 * i + 400) for i in range(4)] + [(4000.0, 4450.0)]
    late = [(at + 300, end) for at, end in spans]
    beside = [kernel(GEMM, 4305, 140, rank=rank) for rank in (0, 1)]
    time = contention_time(reductions(spans, late, kernels=beside), [])
    row = time.collectives
    assert (row.launches, row.time_ns, row.beside_ns) == (2, 300_000, 280_000)
    assert (row.measured_launches, row.measured_ns, row.modelled_launches) == (2, 100_000, 0)
    assert (time.kernels, time.total.launches, time.total.unknown_launches) == (2, 2, 2)
    assert contention_lines(time, "here")[1] == (
        "contention in collectives, without their waiting: 100 us measured (2 launches, 300 us)"
    )
    assert contention_table(time, "here").rows[2][:2] == ("collectives", 2)


def test_iterations_limit_the_kernels() -> None:
    trace = job()
    assert contention_time(trace, [], iterations=[1]).kernels == 5
    time = contention_time(trace, [], iterations=[2])
    assert (time.kernels, time.total.launches, time.by_class, time.by_partner) == (0, 0, (), ())
    assert contention_lines(time, "here") == []


def test_the_engine_models_all_iterations() -> None:
    trace = job(kernel(ADD, 1045.5, 9, stream=8))
    (graph,) = iteration_graphs(trace, load_parameters())
    time = contention_of(trace)
    assert time.total.modelled_launches == 1
    row = np.flatnonzero(graph.tasks.event == 106)[0]
    assert time.total.modelled_ns == pytest.approx(9_000 - graph.tasks.duration_ns[row])


def test_a_trace_without_overlap_says_so() -> None:
    time = contention_of(trace_of(gemms(3)))
    assert contention_table(time, "here").rows == []
    assert contention_lines(time, "here") == [
        "contention: none here; no kernel ran beside other work (collectives are not counted)"
    ]
    nothing = contention_of(Trace(TraceMeta("kineto"), {}))
    assert (nothing.kernels, contention_lines(nothing, "here")) == (0, [])


@pytest.mark.parametrize(
    ("isolated_ns", "basis"),
    [(10_000.0, Basis.MEASURED), (10_400.0, Basis.MEASURED), (12_000.0, Basis.MODELLED), (16_000.0, Basis.MODELLED)],
)
def test_an_isolated_duration_is_measured_if_the_time_alone_agrees(isolated_ns: float, basis: Basis) -> None:
    """The time alone is 10 us, without scatter: 10.4 us agree; 12 us, or no contention at all, do not."""
    trace = job(kernel(ADD, 1045.5, 9, stream=8))
    graph = graph_with(trace, {105: isolated_ns, 106: 7_000.0})
    checked = with_pairs(graph, measure_pairs(trace)).tasks
    of_event = dict(zip(checked.event.tolist(), checked.basis.tolist(), strict=True))
    assert of_event[105] == basis
    assert (of_event[106], of_event[100]) == (Basis.MODELLED, Basis.MEASURED)
    assert np.array_equal(checked.duration_ns, graph.tasks.duration_ns)


def test_analyze_shows_the_time_of_its_iteration(run: Run, tmp_path: Path) -> None:
    file = save_trace(job(), tmp_path / "job.trace")
    printed = run("analyze", file, "--all").out
    assert "Time that contention took from kernels beside other work, in iteration 1" in printed
    assert "contention: 6 us measured (1 launch, 16 us); 1 of 5 kernels in iteration 1 ran beside" in printed
    found = json.loads(run("analyze", file, "--json").out)["contention"]
    assert (found["launches"], found["measured_ns"], found["modelled_launches"]) == (1, 6_000, 0)
    assert (found["by_class"][0]["label"], found["by_partner"][0]["measured_ns"]) == ("gemm", 6_000)
    assert found["confounded"] is None


def test_the_report_has_a_block(run: Run, tmp_path: Path) -> None:
    file = write_trace(tmp_path / "job.json", steps=3)
    result = run("report", file, "-o", tmp_path / "page.html", "-w", "overlap:ideal")
    assert result.code == 0, result.err
    page = (tmp_path / "page.html").read_text()
    total = contention_of(collect([file])).total
    assert total.launches and "Time that contention took from kernels beside other work, in the recording" in page
    assert f"{total.launches} of 9 kernels in the recording ran beside other work" in page


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the shared traces")
def test_the_sums_of_a_real_job_are_those_of_the_pairs() -> None:
    trace = collect([DATA / "ddp4" / "mi300_4ranks_merged.json.gz"])
    pairs, time = measure_pairs(trace), contention_of(trace)
    assert time.total.measured_ns == pytest.approx(float((pairs.duration_ns - pairs.alone_ns).sum()))
    # Pandas on the raw events: 2,990 kernels beside RCCL, for 43.33 ms of their 43.99 ms.
    assert (time.total.launches, time.total.time_ns, time.total.beside_ns) == (2990, 43_988_115, 43_330_020)
    assert (time.total.measured_launches, round(time.total.measured_ns / 1e3)) == (2788, 6931)
    assert time.by_class[0].label == "convolution" and time.by_class[0].measured_ns > 0.85 * time.total.measured_ns


def test_a_projection_counts_confirmed_durations_as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GEMM takes 10 us alone and 16 us beside a collective. Without overlap it takes its isolated duration."""
    trace, counted = job(), {}
    for name, isolated_ns in (("agrees", 10_000.0), ("differs", 13_000.0)):
        built = graph_with(trace, {105: isolated_ns})
        monkeypatch.setattr("seqpoint.graphs.build_graph", lambda *_, graph=built, **__: graph)
        projection = sp.project(trace, ["scale_kernels:collective:0.5"], draws=2, options=sp.ProjectOptions(jobs=1))
        counted[name] = projection.projection.timelines["baseline"].graph.tasks
    kinds = {name: int(tasks.basis[tasks.event == 105][0]) for name, tasks in counted.items()}
    assert kinds == {"agrees": Basis.MEASURED, "differs": Basis.MODELLED}
