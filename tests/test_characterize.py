"""`seqpoint characterize`: every kernel in one row, work and rates by hand, PyTorch's own FLOP, and odd traces."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from traces import event, kernel, kineto, launch, transformer

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError
from profilers.ingest.pipeline import collect
from replay.costs.operators import Call, operator_of
from seqpoint.characterization import BOUNDS, BY, characterize_trace, shapes_text
from seqpoint.cli import cli
from seqpoint.communication import collective_rows, launch_queues
from seqpoint.kernel_facts import KERNEL_PHASES, _innermost, kernel_facts
from seqpoint.plots.characterization import squarified

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
    mm, add, orphan = rows["aten::mm"], rows["aten::add"], rows["(no operator)"]
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


def test_each_kernel_is_in_one_row_of_every_table() -> None:
    result = characterize_trace(transformer(128, 256, 128))
    for by in BY:
        rows = result.rows(by)
        assert sum(row.time_ns for row in rows) == result.facts.total_ns
        assert sum(row.kernels for row in rows) == len(result.facts)
        assert sum(row.share for row in rows) == pytest.approx(1.0)
        assert list(rows) == sorted(rows, key=lambda row: (-row.time_ns, row.name, row.shapes))
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
    assert "3 kernels take 110 us" in done.stdout and "Operators with their shapes by time" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
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
    sp.characterize(saved(tmp_path, events)).plot(kind).save(page)
    assert "<script>alert(1)" not in page.read_text()


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    nameless = sp.characterize(saved(tmp_path, [launch(10, 1), kernel("k", 30, 5, 1)], deviceProperties=[]))
    notes = " ".join(nameless.notes())
    assert "add --device NAME" in notes and "record_shapes=True" in notes and "names no module" in notes
    assert [table.title.split()[0] for table in nameless.tables()] == ["Classes", "Kernels", "Launches"]
    with pytest.raises(InvalidInputError, match="name the device"):
        nameless.plot()
    with pytest.raises(InvalidInputError, match="one of operator"):
        nameless.rows("colour")
    with pytest.raises(InvalidInputError, match="one of roofline"):
        nameless.plot("pie")
    with pytest.raises(NotFoundError):
        sp.characterize(tmp_path / "t.json", device="no such device")
    empty = characterize_trace(collect([saved(tmp_path, [event("aten::mm", "cpu_op", 1, 2)])]))
    assert empty.summary() == ["the trace holds no kernel; `seqpoint describe TRACE` shows what it holds"]
    assert empty.rows() == () and empty.notes() == () and empty.tables() == ()


def test_collectives_have_bus_bandwidth_and_skew() -> None:
    rows = collective_rows(transformer(128))
    assert rows and all(row.time_ns > 0 and row.calls > 0 for row in rows)
    row = next(row for row in rows if row.kind == "all_reduce" and row.bytes and row.ranks)
    time = row.median_ns if row.transfer_ns is None else row.transfer_ns
    assert row.bus_bytes_per_s == pytest.approx(1e9 * row.bytes * 2 * (row.ranks - 1) / row.ranks / time)  # type: ignore[operator]


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
