"""Operators of the kernels of graphs, from captures: matching, the rows that it adds, and captures that do not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from traces import event, kineto

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.ingest.alignment import KernelNames, longest_alignment
from profilers.ingest.pipeline import IngestOptions, collect, ingest
from profilers.trace.store import load_trace
from profilers.trace.trace import Trace
from seqpoint.breakdown import operators_by_name
from seqpoint.cli import cli
from seqpoint.kernel_facts import kernel_facts

Events = list[dict[str, Any]]

#: Kernels of one layer, with the operator, shapes for a batch of `b`, and workgroups for it.
LAYER = ("gemm_128x64", "norm_kernel", "attention_kernel", "attention_reduce")
SHARED = Path(__file__).parent.parent.parent / "shared" / "data" / "traces" / "kineto" / "tracelens" / "other"


def layer(t: float, batch: int, correlation: int, *, call: str = "hipLaunchKernel", named: bool = True) -> Events:
    """Return operators of a layer that begins at `t`, and calls that launch its four kernels in stream capture."""
    shapes = ([[batch, 64], [64, 128]], [[batch, 64]], [[batch, 8, 64]])
    names, events = ("aten::mm", "my::norm", "my::attention"), []
    for n, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        types = {"Input Dims": shape, "Input type": ["float"] * len(shape)}
        events.append(event(name, "cpu_op", t + 10 * n, 9, **types))
    for n, kernel in enumerate(LAYER):
        args = {"kernel": kernel, "grid": [batch + n, 1, 1], "block": [64, 1, 1]} if named else {}
        start = t + 10 * min(n, 2) + 1 + n
        events.append(event(call, "cuda_runtime", start, 1, correlation=correlation + n, **args))
    return events


def captured(t: float, batch: int, layers: int = 3, **how: Any) -> Events:
    """Return a stream capture of some layers that begins at `t`."""
    begin = event("hipStreamBeginCapture", "cuda_runtime", t, 1, correlation=int(t))
    end = event("hipStreamEndCapture", "cuda_runtime", t + 100 * layers + 5, 1, correlation=int(t) + 1)
    bodies = (layer(t + 10 + 100 * n, batch, int(t) + 10 * n + 10, **how) for n in range(layers))
    return [begin, *(each for body in bodies for each in body), end]


def step(number: int, tokens: int | None, names: list[str], **more: Any) -> Events:
    """Return a step that launches a graph of these kernels; `tokens` are annotated as a serving engine does."""
    t = 10_000.0 * number
    name = f"ProfilerStep#{number}" if tokens is None else f"execute_{tokens}_context_0()_generation_{tokens}()"
    events = [event(name, "user_annotation", t, 9000)]
    events.append(event("hipGraphLaunch", "cuda_runtime", t + 10, 20, correlation=number))
    for n, kernel in enumerate(names):
        args = {"stream": 7, "device": 0, "correlation": number}
        events.append(event(kernel, "kernel", t + 50 + 10 * n, 5, **args | {key: more[key][n] for key in more}))
    return events


def write(path: Path, *events: Events) -> Path:
    path.write_text(json.dumps(kineto([each for of in events for each in of])))
    return path


def joined(folder: Path, timeline: Events, capture: Events) -> Trace:
    """Return a timeline whose graphs have the operators of a capture."""
    path = write(folder / "timeline.json", timeline)
    return collect([path], IngestOptions(captures=(write(folder / "capture.json", capture),)))


def shapes_of_kernels(trace: Trace) -> list[str | None]:
    ops = {row["id"]: row["shapes"] for row in trace.ops.to_pylist()}
    return [ops.get(op) for op in trace.kernels["op_id"].to_pylist()]


def test_kernels_of_graphs_get_operators_shapes_and_grids(tmp_path: Path) -> None:
    steps = [*step(1, 32, [*LAYER] * 3), *step(2, 32, [*LAYER] * 3)]
    trace = joined(tmp_path, steps, captured(0, 32))
    kernels, ops = trace.kernels.to_pylist(), {row["id"]: row for row in trace.ops.to_pylist()}
    first = [ops[row["op_id"]] for row in kernels[:4]]
    assert [op["name"] for op in first] == ["aten::mm", "my::norm", "my::attention", "my::attention"]
    assert first[2]["id"] == first[3]["id"]
    assert (first[0]["shapes"], first[0]["dtypes"]) == ("[[32,64],[64,128]]", '["float","float"]')
    place = {"start_ns": 10_010_000, "dur_ns": None, "iteration": 1, "process": 10, "thread": 10}
    place["iteration"] = trace.iterations["iteration"][0].as_py()
    assert {name: first[0][name] for name in place} == place
    assert first[0]["args"] == '{"capture":"capture.json"}'
    assert [(row["workgroups"], row["workgroup_size"]) for row in kernels[:2]] == [(32, 64), (33, 64)]
    # An operator for each call and launch: three layers of three operators, twice.
    assert len(ops) == 18
    assert len({row["op_id"] for row in kernels}) == 18
    quality = trace.meta.quality
    assert (quality["graph_launches"], quality["graph_kernels"], quality["graph_kernels_matched"]) == (2, 24, 24)
    assert quality["graph_kernel_ns"] == quality["graph_kernel_matched_ns"] == 24 * 5000
    assert quality["orphan_op"] == quality["graph_kernels_other_batch"] == 0


def test_the_tables_count_operators_by_call_and_give_them_no_time_on_the_host(tmp_path: Path) -> None:
    trace = joined(tmp_path, step(1, 32, [*LAYER] * 3), captured(0, 32))
    rows = {row.name: (row.calls, row.kernels, row.host_ns) for row in operators_by_name(trace)}
    assert rows == {"aten::mm": (3, 3, 0), "my::norm": (3, 3, 0), "my::attention": (3, 6, 0)}
    facts = kernel_facts(trace)
    assert facts.flops[facts.in_classes({"gemm"})].tolist() == [2 * 32 * 64 * 128] * 3


def test_modules_of_the_capture_are_those_of_the_kernels(tmp_path: Path) -> None:
    module = event("nn.Module: Block_1", "python_function", 105, 100)
    trace = joined(tmp_path, step(1, 32, [*LAYER] * 3), [*captured(0, 32), module])
    facts = kernel_facts(trace)
    names = [facts.modules[n] if n >= 0 else None for n in facts.module.tolist()]
    assert names == [None] * 4 + ["Block_1"] * 4 + [None] * 4


@pytest.mark.parametrize("ranks", [1, 3])
def test_captures_are_joined_alike_in_memory_and_in_a_folder(tmp_path: Path, ranks: int) -> None:
    capture = write(tmp_path / "capture.json", captured(0, 32))
    paths = []
    for rank in range(ranks):
        paths.append(tmp_path / f"rank{rank}.json")
        more = {"distributedInfo": {"rank": rank, "world_size": ranks}}
        events = [event("aten::add", "cpu_op", 5, 2), *step(1, 32, [*LAYER] * 3), *step(2, 16, [*LAYER] * 3)]
        paths[-1].write_text(json.dumps(kineto(events, **more)))
    options = IngestOptions(captures=(capture,))
    for _ in range(2):  # the second time replaces the trace
        summary = ingest(paths, tmp_path / "t.trace", options)
    stored, whole = load_trace(tmp_path / "t.trace"), collect(paths, options)
    assert stored.meta == whole.meta
    assert stored.meta.quality["graph_kernels_matched"] == 24 * ranks
    assert summary.rows == {kind: table.num_rows for kind, table in stored.tables.items()}
    for kind, table in stored.tables.items():
        assert table.to_pylist() == whole.tables[kind].to_pylist()
    ids = [number for kind in stored.tables if kind != "iterations" for number in stored.tables[kind]["id"].to_pylist()]
    assert len(set(ids)) == len(ids)
    as_trace = collect(paths, IngestOptions(captures=(ingest([capture], tmp_path / "c.trace").path,)))
    assert as_trace.ops["shapes"].to_pylist() == whole.ops["shapes"].to_pylist()


@pytest.mark.parametrize(("tokens", "expected"), [(32, 32), (16, 16), (20, 32), (9, 16), (64, None), (3, None)])
def test_the_capture_of_the_batch_is_taken(tmp_path: Path, tokens: int, expected: int | None) -> None:
    capture = [*captured(0, 32), *captured(1000, 16)]
    trace = joined(tmp_path, step(1, tokens, [*LAYER] * 3), capture)
    shape = None if expected is None else f"[[{expected},64],[64,128]]"
    assert shapes_of_kernels(trace)[0] == shape
    assert trace.ops["name"].to_pylist()[0] == "aten::mm"
    assert trace.meta.quality["graph_kernels_other_batch"] == (12 if expected is None else 0)


def test_without_a_batch_equal_captures_give_no_shapes(tmp_path: Path) -> None:
    timeline = step(1, None, [*LAYER] * 3)
    assert shapes_of_kernels(joined(tmp_path, timeline, [*captured(0, 32), *captured(1000, 16)])) == [None] * 12
    assert None not in shapes_of_kernels(joined(tmp_path, timeline, captured(0, 32)))


def test_grids_tell_the_batch(tmp_path: Path) -> None:
    def timeline(batch: int) -> Events:
        grids = [[batch + n, 1, 1] for n in range(4)] * 3
        return step(1, None, [*LAYER] * 3, grid=grids, block=[[64, 1, 1]] * 12)

    capture = [*captured(0, 32), *captured(1000, 16)]
    assert shapes_of_kernels(joined(tmp_path, timeline(16), capture))[0] == "[[16,64],[64,128]]"
    assert shapes_of_kernels(joined(tmp_path, timeline(8), capture)) == [None] * 12
    assert shapes_of_kernels(joined(tmp_path, timeline(8), captured(0, 32))) == [None] * 12


def test_launches_without_names_are_matched_by_recurring_calls(tmp_path: Path) -> None:
    capture = captured(0, 32, call="cudaLaunchKernel", named=False)
    names = [*LAYER] * 3
    trace = joined(tmp_path, step(1, 32, names), capture)
    assert trace.meta.quality["graph_kernels_matched"] == 12
    assert shapes_of_kernels(trace)[:2] == ["[[32,64],[64,128]]", "[[32,64]]"]
    with pytest.raises(InvalidInputError, match=r"0 of 11 kernels \(0 %\)"):
        joined(tmp_path, step(1, 32, names[:-1]), capture)
    with pytest.raises(InvalidInputError, match=r"0 of 12 kernels"):
        joined(tmp_path, step(1, 32, [f"k{n}" for n in "abcdefghijkl"]), capture)


def eager(t: float, batch: int, correlation: int, layers: int = 3) -> Events:
    """Return an iteration without graphs: operators, launches and kernels."""
    events = [event(f"ProfilerStep#{correlation // 100}", "user_annotation", t, 900)]
    for n in range(layers):
        calls = layer(t + 10 + 100 * n, batch, correlation + 4 * n, named=False)
        launches = [each for each in calls if each["cat"] == "cuda_runtime"]
        args = [{"stream": 7, "device": 0, "correlation": each["args"]["correlation"]} for each in launches]
        grid = [{"grid": [batch + k, 1, 1], "block": [64, 1, 1]} for k in range(4)]
        kernels = [event(LAYER[k], "kernel", launches[k]["ts"] + 3, 2, **args[k], **grid[k]) for k in range(len(LAYER))]
        events += [*calls, *kernels]
    return events


def test_an_eager_trace_tells_operators_too(tmp_path: Path) -> None:
    capture = [*eager(1000, 512, 100), *eager(2000, 32, 200), *eager(3000, 16, 300)]
    trace = joined(tmp_path, step(1, 16, [*LAYER] * 3), capture)
    assert shapes_of_kernels(trace)[0] == "[[16,64],[64,128]]"
    assert trace.kernels["workgroups"].to_pylist()[:4] == [16, 17, 18, 19]
    whole = [each for each in capture if each["cat"] != "user_annotation"]  # one iteration: the place is searched
    trace = joined(tmp_path, step(1, 16, [*LAYER] * 3), whole)
    assert trace.meta.quality["graph_kernels_matched"] == 12
    # Wherever in the long sequence the graph lies, its operators are right.
    names = {row["id"]: row["name"] for row in trace.ops.to_pylist()}
    of_kernels = [names[op] for op in trace.kernels["op_id"].to_pylist()]
    assert of_kernels == ["aten::mm", "my::norm", "my::attention", "my::attention"] * 3


def test_other_variants_and_kernels_of_its_own_leave_the_rest_matched(tmp_path: Path) -> None:
    names = [*LAYER] * 3
    names[4] = "gemm_256x64"  # another tile: similar
    names[5] = "layernorm_fast"  # one class, between two matched kernels
    names.insert(8, "memset_node")
    trace = joined(tmp_path, step(1, 32, names), captured(0, 32))
    ops = {row["id"]: row["name"] for row in trace.ops.to_pylist()}
    given_ops = [ops.get(op) for op in trace.kernels["op_id"].to_pylist()]
    layer_ops = ["aten::mm", "my::norm", "my::attention", "my::attention"]
    assert given_ops == [*layer_ops * 2, None, *layer_ops]
    assert trace.meta.quality["graph_kernels_unmatched"] == trace.meta.quality["orphan_op"] == 1


def test_names_may_be_mangled_on_one_side_only(tmp_path: Path) -> None:
    capture = captured(0, 32)
    for each in capture:
        if "kernel" in each["args"]:
            name = each["args"]["kernel"]
            each["args"]["kernel"] = f"_ZN2my{len(name)}{name}ILi4EEEvPf"
    trace = joined(tmp_path, step(1, 32, [f"void my::{name}<4>(float*)" for name in LAYER] * 3), capture)
    assert trace.meta.quality["graph_kernels_matched"] == 12
    assert shapes_of_kernels(trace)[0] == "[[32,64],[64,128]]"


def test_kernels_of_parallel_streams_run_in_another_order(tmp_path: Path) -> None:
    names = [*LAYER] * 3
    names[4], names[6] = names[6], names[4]
    trace = joined(tmp_path, step(1, 32, names, stream=[7] * 4 + [8, 7] * 4), captured(0, 32))
    assert trace.meta.quality["graph_kernels_matched"] == 12
    names = [*LAYER] * 3
    nodes = [*range(11, 0, -1), 12]  # nodes are numbered in the order of the capture
    trace = joined(tmp_path, step(1, 32, [*names[10::-1], names[11]], **{"graph node id": nodes}), captured(0, 32))
    assert trace.meta.quality["graph_kernels_matched"] == 12


def test_equal_pieces_of_a_model_are_taken_in_their_order(tmp_path: Path) -> None:
    modules = [event(f"nn.Module: Block_{n}", "python_function", 1000.0 * n, 900) for n in range(3)]
    capture = [each for n in range(3) for each in captured(1000.0 * n, 32, 1)]
    timeline = [each for n in range(1, 7) for each in step(n, 32, [*LAYER])]
    facts = kernel_facts(joined(tmp_path, timeline, [*capture, *modules]))
    blocks = [facts.modules[n] for n in facts.module.tolist()]
    assert blocks[::4] == ["Block_0", "Block_1", "Block_2"] * 2


def test_captures_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    timeline, capture = step(1, 32, [*LAYER] * 3), captured(0, 32)
    with pytest.raises(InvalidInputError, match=r"capture\.json: is not a capture .* timeline\.json: 4 of 12 .*33 %"):
        joined(tmp_path, step(1, 32, [*LAYER, *"abcdefgh"]), capture)
    with pytest.raises(InvalidInputError, match=r"timeline\.json: no kernel was launched by a graph"):
        joined(tmp_path, [each for each in timeline if each["name"] != "hipGraphLaunch"], capture)
    with pytest.raises(InvalidInputError, match=r"capture\.json: no operator launches a kernel in this capture"):
        joined(tmp_path, timeline, [each for each in capture if each["cat"] != "cpu_op"])
    with pytest.raises(InvalidInputError, match=r"capture\.json: no operator launches"):
        joined(tmp_path, timeline, [event("aten::mm", "cpu_op", 1, 2)])


@pytest.mark.parametrize(
    "args",
    [
        {"kernel": 7, "grid": "x", "block": None},
        {"kernel": "gemm_128x64", "grid": [1, 2], "block": [64, 1, 1]},
        {"kernel": "gemm_128x64", "grid": [0, 1, 1], "block": [1e9, True, 1]},
        {"kernel": "gemm_128x64", "grid": [2**31 - 1] * 3, "block": [2**31 - 1] * 3},
        {"kernel": ""},
    ],
)
def test_odd_arguments_of_launches_do_no_harm(tmp_path: Path, args: dict[str, Any]) -> None:
    capture = captured(0, 32)
    launches = [each for each in capture if each["name"] == "hipLaunchKernel"]
    launches[0]["args"] = {"correlation": 5, **args}
    ops = [each for each in capture if each["cat"] == "cpu_op"]
    ops[0]["args"] = {"Input Dims": [["x"], 3, [[[]]]]}
    ops[3]["args"] = {"Input Dims": "none"}
    assert joined(tmp_path, step(1, 32, [*LAYER] * 3), capture).meta.quality["graph_kernels_matched"] >= 11


def test_a_damaged_capture_is_named(tmp_path: Path) -> None:
    timeline = write(tmp_path / "timeline.json", step(1, 32, [*LAYER]))
    capture = tmp_path / "capture.json"
    capture.write_bytes(write(tmp_path / "whole.json", captured(0, 32)).read_bytes()[:-200])
    runner = CliRunner()
    command = ["ingest", str(timeline), "--capture", str(capture), "-o", str(tmp_path / "t.trace")]
    result = runner.invoke(cli, command)
    if result.exit_code:  # a reader may keep what is whole of a file that was cut
        assert "capture.json" in str(result.exception) + result.output
    capture.write_bytes(b"\x00nothing")
    with pytest.raises(Exception, match=r"capture\.json"):
        collect([timeline], IngestOptions(captures=(capture,)))
    with pytest.raises(Exception, match=r"absent\.json"):
        sp.ingest(timeline, tmp_path / "t.trace", options=sp.IngestOptions(captures=(tmp_path / "absent.json",)))


def test_the_command_joins_captures_and_a_trace_that_was_ingested_takes_none(tmp_path: Path) -> None:
    timeline = write(tmp_path / "timeline.json", step(1, 32, [*LAYER] * 3))
    capture, target = write(tmp_path / "capture.json", captured(0, 32)), str(tmp_path / "t.trace")
    result = CliRunner().invoke(cli, ["ingest", str(timeline), "--capture", str(capture), "-o", target, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["events"]["ops"] == 9
    text = CliRunner().invoke(cli, ["ingest", str(timeline), "--capture", str(capture), "-o", target]).stdout
    assert "1 launch of graphs: 12 of 12 kernels are in the capture, 100.0 % of their time" in text
    with pytest.raises(InvalidInputError, match="were chosen when it was ingested"):
        sp.open(target, captures=capture)
    assert sp.open(timeline, captures=capture).ops.num_rows == 9


_NAMES = st.lists(st.integers(0, 4), max_size=12)


@given(_NAMES, _NAMES)
def test_the_alignment_is_a_longest_common_subsequence(first: list[int], second: list[int]) -> None:
    names = [KernelNames(*[np.array(numbers, np.int64)] * 2) for numbers in (first, second)]
    left, right = longest_alignment(*names)
    assert (np.diff(left) > 0).all()
    assert (np.diff(right) > 0).all()
    assert [first[i] for i in left] == [second[j] for j in right]
    lengths = np.zeros((len(first) + 1, len(second) + 1), np.int64)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            lengths[i + 1, j + 1] = lengths[i, j] + 1 if a == b else max(lengths[i, j + 1], lengths[i + 1, j])
    assert len(left) == lengths[-1, -1]


@pytest.fixture
def sglang() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the shared traces are not here")
    return SHARED


def test_the_decode_graph_of_sglang_is_restored_from_its_capture(sglang: Path) -> None:
    timeline, capture = sglang / "sglang_Qwen3-8B_decode.json.gz", sglang / "sglang_decode_capture_bs32.json.gz"
    trace = sp.open(timeline, captures=capture)
    quality = trace.meta.quality
    assert (quality["graph_kernels"], quality["graph_kernels_matched"], quality["orphan_op"]) == (544, 544, 3)
    assert quality["graph_kernel_matched_ns"] == quality["graph_kernel_ns"] == 9_656_404
    shapes = [row.rsplit(",[]", 1)[0] for row in shapes_of_kernels(trace) if row and "151936" in row]
    assert "[[32,4096],[4096,151936]]" in shapes
    facts = kernel_facts(trace)
    # Qwen3-8B: 36 layers of q, k, v, output, gate, up and down, and the head, for 32 tokens.
    weights = 36 * (4096 * 6144 + 4096 * 4096 + 4096 * 24576 + 12288 * 4096) + 4096 * 151936
    assert facts.flops[facts.in_classes({"gemm"})].sum() == 2 * 32 * weights
    assert {"SiluAndMul_35", "Qwen3Attention_0"} <= set(facts.modules)


def test_captures_of_other_steps_and_jobs_are_told_from_that_of_sglang(sglang: Path) -> None:
    timeline = sglang / "sglang_Qwen3-8B_decode.json.gz"
    prefill = sp.open(timeline, captures=sglang / "sglang_Qwen3-8B_prefilldecode.json.gz")
    quality = prefill.meta.quality
    assert quality["graph_kernels_matched"] == quality["graph_kernels_other_batch"]
    with pytest.raises(InvalidInputError, match=r"torch_compile.* sglang_Qwen3-8B_decode.*\(1 %\)"):
        sp.open(timeline, captures=sglang / "torch_compile_triton_mi300.json.gz")
