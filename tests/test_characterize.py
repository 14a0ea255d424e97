"""`seqpoint characterize`: every kernel in one row, work and rates by hand, PyTorch's own FLOP, and odd traces."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_analysis_hta import counted_by_hta
from traces import event, kernel, kineto, launch, transformer

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.activity import times_of_recording
from profilers.trace.arrays import integers
from replay.costs.calls import Call
from replay.costs.operators import operator_of
from seqpoint.characterization import BY, characterize_trace
from seqpoint.cli import cli
from seqpoint.communication import RankRow, collective_rows, launch_queues, rank_rows, straggler_line
from seqpoint.kernel_facts import KERNEL_PHASES, _innermost, kernel_facts
from seqpoint.plots.operators import squarified
from seqpoint.work_rows import ABOVE, BOUNDS, shapes_text

DATA = Path(__file__).parents[2] / "shared/data/traces/kineto"
A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 1, "numSms": 108}]
GEMM = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"


def operator(name: str, ts: float, number: int, shapes: list[object], dtype: str = "c10::Half") -> dict[str, object]:
    args = {"External id": number, "Input Dims": shapes, "Input type": [dtype] * len(shapes)}
    return event(name, "cpu_op", ts, 12, **args)


def saved(folder: Path, events: list[dict[str, object]], **header: object) -> Path:
    path = folder / "t.json"
    path.write_text(json.dumps(kineto(events, **{"deviceProperties": A100, **header})))
    return path


def job(folder: Path) -> Path:
    """Return a trace of a product, an addition beside a module, and a kernel that nobody launched."""
    events = [
        event("nn.Module: Block_0", "python_function", 90, 300, **{"Python id": 1}),
        event("nn.Module: Linear_3", "python_function", 95, 60, **{"Python id": 2, "Python parent id": 1}),
        operator("aten::mm", 100, 1, [[1024, 1024], [1024, 1024]]),
        launch(105, 10),
        kernel(GEMM, 120, 20, 10, **{"External id": 1, "grid": [8, 8, 1]}),
        operator("aten::add", 200, 2, [[4096, 4096], [4096, 4096]]),
        launch(205, 11),
        kernel("vectorized_elementwise_kernel", 220, 80, 11, **{"External id": 2, "grid": [4096, 1, 1]}),
        kernel("orphan", 400, 10, 12),
    ]
    return saved(folder, events)


def test_rows_have_work_rates_and_bounds_by_hand(tmp_path: Path) -> None:
    result = sp.characterize(job(tmp_path))
    assert result.facts.total_ns == 110_000
    rows = {row.name: row for row in result.rows()}
    mm, add, orphan = rows["aten::mm"], rows["aten::add"], rows["(no operator: no launch)"]
    assert mm.flops == 2 * 1024**3 and mm.bytes == 3 * 2 * 1024**2 and mm.kernels == mm.calls == 1
    assert mm.flops_per_s == pytest.approx(2**31 / 20e-6)
    assert mm.roof_share == pytest.approx(2**31 / 312e12 / 20e-6) and mm.bound == "compute"
    assert mm.waves == pytest.approx(64 / 108)
    assert add.bytes == 3 * 2 * 4096**2 and add.bound == "memory"
    assert add.roof_share == pytest.approx(add.bytes / result.facts.hardware.device.memory_bytes_per_s / 80e-6)  # type: ignore[union-attr]
    assert (orphan.flops, orphan.roof_share, orphan.bound, orphan.class_) == (0, None, "unknown", "other")
    assert {row.name: row.time_ns for row in result.rows("module")} == {
        "Block": 80_000, "Linear": 20_000, "(no module)": 10_000,
    }  # fmt: skip
    assert [row.shapes for row in result.rows("shape")] == [
        "[[4096,4096],[4096,4096]]",
        "[[1024,1024],[1024,1024]]",
        "",
    ]
    assert sum(result.bound_shares.values()) == pytest.approx(1.0)


def test_a_kernel_far_from_filling_the_device_is_bound_by_latency(tmp_path: Path) -> None:
    events = [operator("aten::add", 100, 1, [[64], [64]]), launch(105, 10),
              kernel("vectorized_elementwise_kernel", 120, 4, 10, **{"External id": 1})]  # fmt: skip
    (row,) = sp.characterize(saved(tmp_path, events)).rows()
    assert row.bound == "latency"


def additions(folder: Path, *calls: tuple[float, dict[str, object]], name: str = "aten::add") -> Path:
    """Return a trace of calls of one operator: us and arguments of each."""
    events: list[dict[str, object]] = []
    for number, (us, args) in enumerate(calls, 1):
        at = 1000 * number
        events += [event(name, "cpu_op", at, 12, **{"External id": number, "Input type": ["float"] * 3, **args}),
                   launch(at + 5, number), kernel(f"vectorized_elementwise_kernel<{number}>", at + 20, us, number,
                                                  **{"External id": number})]  # fmt: skip
    return saved(folder, events)


@pytest.mark.parametrize(("known_us", "known"), [(80, "100"), (60, "60"), (50, "50"), (49, "-")])
def test_figures_known_for_less_than_half_of_a_row_are_left_out(tmp_path: Path, known_us: int, known: str) -> None:
    big = {"Input Dims": [[2048, 4096], [2048, 4096]]}
    rest = [] if known == "100" else [(100 - known_us, {"Input Dims": []})]
    result = sp.characterize(additions(tmp_path, (known_us, big), *rest))
    (row,), table = result.rows(), result.text_table()
    cells = dict(zip(table.names, table.rows[0], strict=True))
    assert ("known %" in cells) == (known in ("50", "60")) and cells.get("known %", known) == known
    rates = [cells[name] for name in ("FLOP/B", "TFLOP/s", "GB/s", "of roof %", "bound")]
    facts = row.to_dict()
    assert facts["known_ns"] == known_us * 1000 and facts["flops_per_s"] == pytest.approx(2**23 / known_us * 1e6)
    if known == "-":
        assert rates == ["-"] * 4 + ["unknown"] and (facts["roof_share"], facts["bound"]) == (None, "unknown")
    else:
        assert "-" not in rates and facts["bound"] == cells["bound"] == "memory"


@pytest.mark.parametrize(
    ("name", "dims", "dtype", "us", "bound", "above"),
    [
        ("aten::add", [[1024, 1024]] * 2, "float", 4, "memory", "cache"),  # 12.6 MB in 4 us; L2 has 40 MB
        ("aten::add", [[8192, 8192]] * 2, "float", 300, "memory", "device"),  # 805 MB in 300 us
        ("aten::mm", [[4096, 4096]] * 2, "float", 2000, "compute", "tf32"),  # 137 GFLOP at 69 TFLOP/s
        ("aten::mm", [[4096, 4096]] * 2, "c10::Half", 200, "compute", "device"),  # at 687 TFLOP/s
        ("aten::add", [[8192, 8192]] * 2, "float", 500, "memory", ""),
    ],
)
def test_a_row_above_its_roof_has_its_cause(
    tmp_path: Path, name: str, dims: list[object], dtype: str, us: int, bound: str, above: str
) -> None:
    launched = {"float": "ampere_sgemm_128x64_tn"}.get(dtype, GEMM) if name == "aten::mm" else "elementwise_kernel"
    path = saved(tmp_path, [operator(name, 100, 1, dims, dtype), launch(105, 1),
                            kernel(launched, 120, us, 1, **{"External id": 1})])  # fmt: skip
    result = sp.characterize(path)
    (row,), cells = result.rows(), result.text_table().rows[0]
    assert (row.bound, row.above) == (bound, above) and ((row.roof_share or 0) > 1) == bool(above)
    assert cells[-1] == (f"{bound}, {ABOVE[above][0]}" if above else bound)
    assert any("above the roof" in note for note in result.notes()) == bool(above)


def test_strided_inputs_that_take_longer_have_a_row(tmp_path: Path) -> None:
    dims = [[64, 32], [64, 32], []]
    flat, turned, repeated = ({"Input Dims": dims, "Input Strides": [steps, [32, 1], []]}
                              for steps in ([32, 1], [1, 64], [0, 1]))  # fmt: skip
    shapes = sp.characterize(additions(tmp_path, (30, turned), (20, flat), (4, repeated))).text_table("shape")
    assert [row[1] for row in shapes.rows] == ["64x32 strided, 64x32", "64x32, 64x32", "64x32 expanded, 64x32"]
    alike = sp.characterize(additions(tmp_path, (21, turned), (20, flat)))
    (row,) = alike.rows("shape")
    assert (row.calls, row.layout) == (2, "") and alike.text_table("shape").rows[0][1] == "64x32, 64x32"


def test_an_expanded_input_is_read_once(tmp_path: Path) -> None:
    call = {"Input Dims": [[64, 32], [64, 32], []], "Input Strides": [[32, 1], [0, 1], []]}
    (row,) = sp.characterize(additions(tmp_path, (4, call))).rows()
    assert row.bytes == 4 * (64 * 32 + 32 + 64 * 32)


def test_kernels_without_an_operator_say_why(tmp_path: Path) -> None:
    events = [
        event("cudaGraphLaunch", "cuda_runtime", 100, 5, correlation=1), kernel("a", 120, 10, 1),
        launch(200, 2), kernel("triton_poi_fused_relu_0", 220, 20, 2),
        launch(300, 3), kernel("multi_tensor_apply_kernel", 320, 30, 3),
        kernel("b", 420, 40, 4),
        operator("aten::add", 500, 5, [[64], [64]]), launch(505, 5), kernel("c", 520, 50, 5, **{"External id": 5}),
    ]  # fmt: skip
    result = sp.characterize(saved(tmp_path, events))
    expected = {
        "aten::add": 50_000, "(no operator: no launch)": 40_000, "(no operator: other code)": 30_000,
        "(no operator: compiled code)": 20_000, "(no operator: graph)": 10_000,
    }  # fmt: skip
    for by in ("operator", "shape"):
        assert {row.name: row.time_ns for row in result.rows(by)} == expected
    for lack, kept in (("none recorded", [launch(10, 1)]), ("no host", [])):
        (row,) = sp.characterize(saved(tmp_path, [*kept, kernel("k", 30, 5, 1)])).rows()
        assert row.name == f"(no operator: {lack})"


def test_each_kernel_is_in_one_row_of_every_table() -> None:
    result = characterize_trace(transformer(128, 256, 128))
    for by in BY:
        rows = result.rows(by)
        assert sum(row.time_ns for row in rows) == result.facts.total_ns
        assert sum(row.kernels for row in rows) == len(result.facts)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert list(rows) == sorted(rows, key=lambda row: (-row.time_ns, row.name, row.shapes, row.layout))
    phases = {row.name for row in result.rows("phase")}
    assert phases <= set(KERNEL_PHASES) and "communication" in phases
    assert result.utilisation is not None and 0 < result.utilisation.share < 1
    assert {row.bound for row in result.rows("kernel")} <= set(BOUNDS)


def test_nested_times_add_up_to_those_of_their_parents() -> None:
    nested = characterize_trace(transformer(128)).nested(("phase", "class", "operator"))
    for path, time in nested.items():
        children = [each for other, each in nested.items() if other[:-1] == path]
        assert len(path) == 3 or sum(children) == time


def test_the_command_prints_writes_and_draws(tmp_path: Path) -> None:
    path, table, chart = job(tmp_path), tmp_path / "rows.csv", tmp_path / "chart.html"
    done = CliRunner().invoke(
        cli, ["characterize", str(path), "--table", str(table), "--plot", str(chart)], env={"COLUMNS": "100"}
    )
    assert done.exit_code == 0, done.output
    assert (
        "3 kernels take 110 us" in done.stdout
        and "roofs of A100" in done.stdout
        and "Operators with their shapes by time" in done.stdout
    )
    rules = [line for line in done.stdout.splitlines() if line.startswith("─")]
    assert rules and all(len(line) <= 100 for line in rules)
    assert len(pd.read_csv(table)) == 3 and chart.stat().st_size > 10_000
    facts = json.loads(CliRunner().invoke(cli, ["characterize", str(path), "--json"]).stdout)
    assert facts["kernel_ns"] == 110_000 and set(facts["by"]) == set(BY) - {"operator"}
    assert facts["rows"][0]["name"] == "aten::add" and facts["rows"][0]["bound"] == "memory"
    with pytest.raises(InvalidInputError, match="a table is written as"):
        sp.characterize(path).save(tmp_path / "rows.txt")


@pytest.mark.parametrize("kind", ["roofline", "treemap", "icicle"])
def test_charts_hold_the_names_of_the_trace_as_text(tmp_path: Path, kind: str) -> None:
    events = [operator("<script>alert(1)</script>aten::mm", 100, 1, [[1024, 1024], [1024, 1024]]), launch(105, 10),
              kernel(GEMM, 120, 20, 10, **{"External id": 1}), operator("aten::mm", 200, 2, [[512, 512], [512, 512]]),
              launch(205, 11), kernel(GEMM, 220, 20, 11, **{"External id": 2})]  # fmt: skip
    page = tmp_path / "chart.html"
    result = sp.characterize(saved(tmp_path, events))
    result.plot(kind).save(page)
    assert "<script>alert(1)" not in page.read_text()
    view = result._repr_html_()
    assert "&lt;script&gt;alert(1)" in view and "<script>" not in view and "Phases by time" not in view
    assert "--top" not in view and "Operators by time" in view


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    nameless = sp.characterize(saved(tmp_path, [launch(10, 1), kernel("k", 30, 5, 1)], deviceProperties=[]))
    notes = " ".join(nameless.notes())
    assert "add --device NAME" in notes and "record_shapes=True" in notes and "names no module" in notes
    assert [table.title.split()[0] for table in nameless.tables()] == ["Classes", "Kernels", "Time", "Launches"]
    with pytest.raises(InvalidInputError, match="name the device"):
        nameless.plot()
    with pytest.raises(InvalidInputError, match="one of operator"):
        nameless.rows("colour")
    with pytest.raises(InvalidInputError, match="one of roofline"):
        nameless.plot("pie")
    with pytest.raises(NotFoundError):
        sp.characterize(tmp_path / "t.json", device="no such device")
    empty = characterize_trace(collect([saved(tmp_path, [event("aten::mm", "cpu_op", 1, 2)])]))
    assert empty.summary() == ["the trace holds no kernel of a GPU; `seqpoint describe TRACE` shows what it holds"]
    assert empty.rows() == () and empty.notes() == () and empty.tables() == ()


def test_collectives_have_bus_bandwidth_and_skew() -> None:
    rows = collective_rows(transformer(128))
    assert rows and all(row.time_ns > 0 and row.calls > 0 for row in rows)
    row = next(row for row in rows if row.kind == "all_reduce" and row.bytes and row.ranks)
    time = row.median_ns if row.transfer_ns is None else row.transfer_ns
    assert row.bus_bytes_per_s == pytest.approx(1e9 * row.bytes * 2 * (row.ranks - 1) / row.ranks / time)  # type: ignore[operator]


def test_the_time_of_a_device_has_causes_that_add_up(tmp_path: Path) -> None:
    # From 15 to 100 us: kernels of 25, 20 and 5 us. The second is launched 10 us after the first has ended, and starts
    # 15 us later. The third is launched while the second runs, and starts 10 us after its end.
    events = [launch(10, 1), launch(50, 2), launch(70, 3),
              kernel("a", 15, 25, 1), kernel("b", 65, 20, 2), kernel("c", 95, 5, 3)]  # fmt: skip
    trace = collect([saved(tmp_path, events)])
    (row,) = rank_rows(trace, kernel_facts(trace))
    assert (row.elapsed_ns, row.compute_ns, row.host_ns, row.idle_ns) == (85_000, 50_000, 10_000, 25_000)
    assert (row.slowdown, row.late, row.waiting_ns, row.transfer_ns) == (None, 0, 0.0, 0.0)


def test_a_rank_with_slower_kernels_is_named() -> None:
    trace = transformer(128)
    facts = kernel_facts(trace)
    rows = rank_rows(trace, facts)
    assert len(rows) > 2 and straggler_line(rows) is None
    for row in rows:
        parts = (row.compute_ns, row.transfer_ns, row.waiting_ns or 0.0, row.host_ns, row.idle_ns)
        assert sum(parts) == pytest.approx(row.elapsed_ns) and row.slowdown == pytest.approx(0.0)
    slow = facts.in_classes(("gemm",)) & (facts.rank == rows[1].rank)
    slower = rank_rows(trace, replace(facts, duration_ns=np.where(slow, 2 * facts.duration_ns, facts.duration_ns)))
    assert slower[1].slowest_class == "gemm" and slower[1].class_slowdown == pytest.approx(1.0)
    assert 0 < slower[1].slowdown < 1 and slower[0].slowdown == pytest.approx(0.0)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("late", "why"),
    [
        ({"host_ns": 150}, "its device waits for the host 150 ns longer"),
        (
            {"slowdown": 0.2, "slowest_class": "gemm", "class_slowdown": 0.3},
            "20.0 % longer than the median, gemm 30.0 %",
        ),
        ({}, "neither its kernels nor its host"),
    ],
)
def test_the_sentence_on_a_straggler_tells_why(late: dict[str, object], why: str) -> None:
    row = RankRow(0, 0, 1000, 900.0, 50.0, 50.0, 0, 0.0, 0.0, "", None, 0, 0)
    rows = [row, replace(row, rank=1), replace(row, rank=2, late=3, waited_ns=300, **late)]
    text = straggler_line(rows)
    assert text is not None and why in text and "rank 2 is the straggler: the others wait 150 ns each" in text
    assert straggler_line(rows[:2]) is None and straggler_line(rows[2:]) is None


def test_the_queue_counts_kernels_launched_before_and_not_started(tmp_path: Path) -> None:
    # Launched at 10, 20 and 30 us; they start at 15, 40 and 60: at the third launch, one waits and one runs.
    events = [launch(10, 1), launch(20, 2), launch(30, 3),
              kernel("a", 15, 25, 1), kernel("b", 40, 20, 2), kernel("c", 60, 20, 3)]  # fmt: skip
    (row,) = launch_queues(collect([saved(tmp_path, events)]))
    assert (row.launches, row.longest_queue, row.queue, row.delay_ns) == (3, 1, 0.0, 20_000.0)
    assert row.idle_share == pytest.approx(1 / 3) and row.gap_share == 0.0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=12), st.lists(st.integers(-5, 70)))
def test_the_innermost_span_is_the_last_to_start_around_a_time(spans: list[tuple[int, int]], times: list[int]) -> None:
    nested: list[tuple[int, int]] = []
    for first, length in sorted(spans, key=lambda span: (span[0], -span[1])):
        end = first + length
        if all(end <= other_end or first >= other_end for _, other_end in nested):
            nested.append((first, end))
    start, end = (np.array(column, dtype=np.int64) for column in (zip(*nested, strict=True) if nested else ((), ())))
    found = _innermost(start, end, np.array(times, dtype=np.int64)).tolist()
    for time, row in zip(times, found, strict=True):
        around = [number for number, (first, last) in enumerate(nested) if first <= time < last]
        assert row == (max(around) if around else -1)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=30))
def test_a_treemap_has_the_areas_and_no_overlap(areas: list[float]) -> None:
    shares = sorted((area / sum(areas) for area in areas), reverse=True)
    boxes = squarified(shares)
    assert [(right - left) * (high - low) for left, low, right, high in boxes] == pytest.approx(shares, rel=1e-6)
    assert all(-1e-9 <= side <= 1 + 1e-9 for box in boxes for side in box)
    assert sum((right - left) * (high - low) for left, low, right, high in boxes) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "short"), [("[[2,3],[],[4]]", "2x3, 4"), ("", ""), ("[[[1, 2], [3]]]", "1x2, 3"), ("None", "")]
)
def test_shapes_in_short(text: str, short: str) -> None:
    assert shapes_text(text) == short


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the traces in shared/data")
@pytest.mark.parametrize(
    "file", ["tracelens/mi300/Falconsai_nsfw_image_detection.json.gz", "hta/nccl_a100_rank0.json.gz", "dlrm8/*worker0*"]
)
def test_rows_of_real_traces_add_up(file: str) -> None:
    trace = collect(sorted(DATA.glob(file)))
    facts = kernel_facts(trace)
    assert facts.total_ns == sum(each or 0 for each in trace.kernels["dur_ns"].to_pylist())
    result = characterize_trace(trace)
    for by in BY:
        assert sum(row.time_ns for row in result.rows(by)) == facts.total_ns


def test_bytes_of_compiled_kernels_are_known_without_flop(tmp_path: Path) -> None:
    events: list[dict[str, object]] = []
    names = ("triton_poi_fused_relu_0", "triton_poi_fused_embedding_1", "triton_red_fused_sum_2")
    for number, (name, us) in enumerate(zip(names, (30, 30, 300), strict=True), 1):
        events += [operator(name, 1000 * number, number, [[4096, 4096], [4096, 4096], []])]
        events += [launch(1000 * number + 5, number)]
        events += [kernel(name, 1000 * number + 10, us, number, **{"External id": number})]
    relu, lookup, total = (
        {row.name: row for row in sp.characterize(saved(tmp_path, events)).rows()}[name] for name in names
    )
    assert (relu.known_ns, relu.flops, relu.flops_per_s) == (0, 0.0, None) and relu.moved_bytes == 4 * 4096**2
    assert relu.bytes_per_s == pytest.approx(4 * 4096**2 / 30e-6) and relu.bound == "memory"
    assert total.roof_share == pytest.approx(relu.roof_share / 10) and total.bound == "unknown"  # type: ignore[operator]
    assert (lookup.moved_ns, lookup.bytes_per_s, lookup.roof_share, lookup.bound) == (0, None, None, "unknown")


def test_flash_attention_is_what_pytorch_counts_or_unknown() -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    q, k = [2, 64, 8, 32], [2, 96, 2, 32]
    heads_first = [[shape[i] for i in (0, 2, 1, 3)] for shape in (q, [2, 96, 8, 32], [2, 96, 8, 32])]
    forward = counter.sdpa_flop_count(*heads_first)
    backward = counter.sdpa_backward_flop_count(heads_first[0], *heads_first)
    values = [""] * 24
    flash_3 = Call("flash_attn_3::fwd", [q, k, k, *[[]] * 23], ["c10::Half"] * 3, [*values, "False", "-1", "-1"])
    flash_2 = Call("flash_attn::_flash_attn_forward", [q, k, k], ["c10::Half"] * 3, [*values[:5], "False", "-1", "-1"])
    back_3 = Call(
        "flash_attn_3::bwd", [q, q, k, k, q, *[[]] * 14], ["c10::Half"] * 5, [*values[:16], "False", "-1", "0"]
    )
    counts = [operator_of(call) for call in (flash_3, flash_2, back_3)]
    assert [count.flops for count in counts if count] == [forward, forward, backward]
    causal = operator_of(replace(flash_3, values=[*values, "True", "-1", "0"]))
    assert causal is not None and causal.flops == forward / 2
    of_lengths = [*flash_3.shapes[:7], [3], [3], *flash_3.shapes[9:]]
    pages = [*flash_3.shapes[:14], [2, 16], *flash_3.shapes[15:]]
    for unknown in (
        replace(flash_3, shapes=of_lengths),
        replace(flash_3, shapes=pages),
        replace(flash_3, values=[*values, "True", "128", "0"]),
        replace(flash_3, values=()),
        replace(flash_3, name="flash_attn::_flash_attn_varlen_forward"),
    ):
        assert operator_of(unknown) is None


def test_flop_are_those_that_pytorch_counts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3)
    )
    tokens, images = torch.randn(2, 16, 64), torch.randn(2, 3, 32, 32)
    heads = torch.randn(2, 4, 32, 16, requires_grad=True)

    def work() -> None:
        layer(tokens).sum().backward()
        network(images).sum().backward()
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().backward()
        torch.nn.functional.linear(tokens, torch.randn(32, 64), torch.randn(32))

    with FlopCounterMode(display=False) as counter:
        work()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    profiler.export_chrome_trace(str(tmp_path / "cpu.json"))
    trace = sp.open(tmp_path / "cpu.json", iterations="whole")
    ours: dict[str, float] = {}
    for row in zip(
        *(trace.ops[name].to_pylist() for name in ("name", "shapes", "dtypes", "concrete_inputs")), strict=True
    ):
        counted = operator_of(Call.of_row(*row))
        if counted is not None:
            ours[row[0]] = ours.get(row[0], 0.0) + counted.flops
    theirs = {
        str(name).replace("aten.", "aten::"): flops for name, flops in counter.get_flop_counts()["Global"].items()
    }
    assert {name: ours[name] for name in theirs} == theirs and len(theirs) == 5


PEERS = list(csv.DictReader((Path(__file__).parent / "accuracy" / "characterize.csv").read_text().splitlines()))


def peer_traces(table: str) -> list[str]:
    return list(dict.fromkeys(row["trace"] for row in PEERS if row["table"] == table))


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the traces in shared/data")
@pytest.mark.parametrize("name", peer_traces("operators"))
def test_operators_are_those_of_tracelens(name: str) -> None:
    """TraceLens' reports on its own traces. Its FLOP of addmm count the bias, which PyTorch's counter does not."""
    result = sp.characterize(DATA / f"{name}.json.gz")
    rows, operators = result.rows("shape"), {row.name: row for row in result.rows()}
    for peer in (row for row in PEERS if row["trace"] == name and row["tool"] == "TraceLens"):
        if peer["table"] == "summary":
            ours = operators[peer["name"]]
            figures = {"kernel_us": ours.time_ns / 1e3}
        else:
            (ours,) = (row for row in rows if row.name == peer["name"] and row.shapes.startswith(peer["shapes"]))
            bias = np.prod(json.loads(ours.shapes)[1][:1] + json.loads(ours.shapes)[0]) if "addmm" in ours.name else 0
            gflop = (ours.flops / ours.calls + bias) / 1e9
            figures = {"gflop": gflop, "mib": ours.bytes / ours.calls / 2**20, "kernel_us": ours.time_ns / 1e3}
        assert ours.calls == int(peer["calls"])
        # TraceLens keeps microseconds as 32-bit numbers, or of times since the start of the machine.
        assert figures[peer["figure"]] == pytest.approx(float(peer["value"]), rel=2e-6), peer


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the traces in shared/data")
@pytest.mark.parametrize("name", peer_traces("timeline"))
def test_the_timeline_is_that_of_tracelens(name: str) -> None:
    """TraceLens leaves out work that nobody launched in the recording, and memory fills."""
    trace = collect([DATA / f"{name}.json.gz"])
    copies = trace.copies.filter(pc.not_equal(trace.copies["direction"].cast("string"), "memset"))
    kept = {
        kind: table.filter(pc.is_valid(table["launch_id"]))
        for kind, table in {"kernels": trace.kernels, "copies": copies}.items()
    }
    (device,) = times_of_recording(trace.with_tables(**kept))
    ours = {
        "total_time": device.span_ns,
        "busy_time": device.times.busy_ns,
        "idle_time": device.span_ns - device.times.busy_ns,
        "total_comm_time": device.times.communication_ns,
    }
    theirs = {
        row["name"]: 1e6 * float(row["value"]) for row in PEERS if row["trace"] == name and row["table"] == "timeline"
    }
    assert ours == pytest.approx(theirs, abs=20)


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the traces in shared/data")
@pytest.mark.parametrize("name", peer_traces("kernels"))
def test_the_longest_kernels_are_those_of_hta(name: str) -> None:
    """HTA rounds starts up and ends down to whole us, and leaves out work that is launched after the steps."""
    trace = collect([DATA / f"{name}.json.gz"], IngestOptions("whole"))
    kept = np.isin(integers(trace.kernels, "id"), list(counted_by_hta(trace)))
    result = characterize_trace(trace.with_tables(kernels=trace.kernels.filter(pa.array(kept))))
    ours = {row.name: row for row in result.rows("kernel")}
    theirs = {row["name"]: float(row["value"]) for row in PEERS if row["trace"] == name and row["table"] == "kernels"}
    assert theirs
    for kernel_name, sum_us in theirs.items():
        row = ours[kernel_name]
        assert 0 <= row.time_ns / 1e3 - sum_us <= 2 * row.kernels
