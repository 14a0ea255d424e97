"""Steps of serving: what annotations state, the work of their operators, tables by phase, what-ifs, and an engine."""

import csv
import json
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import event, kernel, kineto, launch

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.trace.serving import PhaseTokens, ServingStep, parse_serving_step, serving_steps
from profilers.trace.trace import Trace
from replay.costs.calls import Call
from replay.costs.operators import operator_of
from replay.costs.serving_operators import SERVING_RULES
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import KernelGraph, TaskKind
from replay.graph.operators import AttentionHeads, Operator, by_phase, request_attention, routed_experts
from replay.what_ifs import parse_what_if
from replay.what_ifs.serving import EqualRequests, StepRequests, step_requests
from seqpoint.characterization import characterize_trace
from seqpoint.cli.serving import command
from seqpoint.kernel_facts import kernel_facts
from seqpoint.serving_load import _weights

SHARED = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto" / "tracelens" / "other"
H, P = "c10::BFloat16", load_parameters()
#: Two prompts of 4,000 and 4,155 tokens, and 37 requests in decode of 1,000 tokens each.
LENGTHS, DECODE, CONTEXT = (4000, 4155), 37, 1000
CONTEXT_SUMS = (sum(LENGTHS), sum(LENGTHS), sum(n * n for n in LENGTHS), sum(n * n for n in LENGTHS))
GENERATION_SUMS = (DECODE, DECODE * CONTEXT, DECODE, DECODE * CONTEXT)


def sums(values: tuple[int, ...]) -> str:
    return "".join(f"{name}{value}" for name, value in zip(("sq", "sk", "sqsq", "sqsk"), values, strict=True))


MIXED = f"execute_8192_context_2({sums(CONTEXT_SUMS)})_generation_37({sums(GENERATION_SUMS)})"


@pytest.mark.parametrize(
    ("name", "phase", "requests", "tokens", "pairs"),
    [
        (MIXED, "mixed", 39, 8192, sum(n * (n + 1) / 2 for n in LENGTHS) + DECODE * CONTEXT),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk900sqsq32sqsk900)", "decode", 32, 32, 900),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk900)", "decode", 32, 32, 900),
        ("execute_context_2(8192)_generation_3(3)", "mixed", 5, 8195, None),
        ("step[EXTEND bs=2 toks=300]", "prefill", 2, 300, None),
        ("step[DECODE bs=64]", "decode", 64, 64, None),
        ("step[DECODE bs=2 g_sq=4 g_sqsq=8 g_sqsk=40 g_sk=20]", "decode", 2, 4, 40 - 2),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
         "mixed", 2, 6, 30 + 12),
        ("prefill[bs=2 tok=7 ctx=[3, 4]]", "prefill", 2, 7, 6 + 10),
        ("prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]", "prefill", 6, 17408, None),
        ("decode[bs=117/128 tok=117 d=117]", "decode", 117, 117, None),
        ("decode[bs=2 tok=2 d=2 sqsq=2 sqsk=30 sk=30]", "decode", 2, 2, 30),
        ("[Executor] _forward_step 12: 2 ctx reqs, 30 gen reqs", "mixed", 32, None, None),
    ],
)  # fmt: skip
def test_annotations_of_engines(name: str, phase: str, requests: int, tokens: int | None, pairs: float | None) -> None:
    step = parse_serving_step(name)
    assert step is not None
    assert (step.phase, step.requests, step.tokens) == (phase, requests, tokens)
    found = [side.pairs for side in (step.prefill, step.decode)]
    assert (None if None in found else sum(found)) == pairs


@pytest.mark.parametrize("name", ["forward", "execute_it", "step[OTHER bs=3]", "execute_context_0(0)_generation_0(0)",
                                  f"step[DECODE bs={10**30}]", "prefill[]", "execute_" + "9" * 5000,
                                  "execute_context_0(5)_generation_3(3)"])  # fmt: skip
def test_other_annotations_are_no_steps_of_serving(name: str) -> None:
    assert parse_serving_step(name) is None


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 90)), min_size=1, max_size=9))
def test_pairs_are_those_of_a_causal_mask(requests: list[tuple[int, int]]) -> None:
    """A request of q new tokens after p cached ones: the first attends to p + 1 tokens, the last to p + q."""
    pairs = sum(sum(range(p + 1, p + q + 1)) for q, p in requests)
    stated = PhaseTokens(len(requests), sum(q for q, _ in requests), sum(q + p for q, p in requests),
                         sum(q * q for q, _ in requests), sum(q * (q + p) for q, p in requests))  # fmt: skip
    assert stated.pairs == pairs
    attention = request_attention(stated, PhaseTokens(), AttentionHeads(4, 2, 8, 8))
    assert attention.flops == 4 * pairs * 2 * 16
    assert attention.bytes_read == 2 * (4 * 8 * stated.query_tokens + 2 * 16 * stated.kv_tokens)


def test_a_window_limits_the_pairs() -> None:
    decode, heads = PhaseTokens(4, 4, 4000), (AttentionHeads(8, 8, 64, 64, window=window) for window in (0, 100))
    whole, narrow = (request_attention(PhaseTokens(), decode, each) for each in heads)
    assert narrow.flops == pytest.approx(whole.flops / 10)
    assert narrow.bytes_read < whole.bytes_read


#: A step of vLLM with experts, as it serves gpt-oss: operators, kernels and their times in us.
WORK: list[tuple[str, str, list[Any], float]] = [
    ("aiter::rmsnorm2d_fwd_with_add_ck", "rmsnorm2d_kernel", [[8192, 2880]] * 4 + [[2880], [], []], 20),
    ("aten::addmm", "Cijk_Alik_Bljk", [[5120], [8192, 2880], [2880, 5120], [], []], 400),
    ("_C::rotary_embedding", "rotary_embedding_kernel", [[8192], [8192, 4096], [8192, 512], [], [9000, 64], []], 40),
    ("_C_cache_ops::reshape_and_cache_flash", "reshape_and_cache_flash_kernel",
     [[8192, 8, 64], [8192, 8, 64], [900, 16, 8, 64], [900, 16, 8, 64], [8192], [], [], []], 20),
    ("vllm::unified_attention_with_output", "kernel_unified_attention_2d",
     [[8192, 64, 64], [8192, 8, 64], [8192, 8, 64], [8192, 64, 64], [], [], [], [0]], 600),
    ("vllm::moe_forward", "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", [[8192, 3072], [8192, 32], [], []],
     3470),
    ("unknown::helper", "helper_kernel", [[8192, 7]], 9),
]  # fmt: skip


def step_events(name: str, work: list[tuple[str, str, list[Any], float]], start: float = 0) -> list[dict[str, Any]]:
    """Return a step: each operator launches a kernel ahead of time, and kernels run one after another."""
    events, time = [], start + 100
    for number, (op, kernel_name, shapes, duration) in enumerate(work, 1):
        correlation, at = int(start) + number, start + 5 * number
        types = [H if shape else "" for shape in shapes]
        events += [
            event(op, "cpu_op", at, 4, **{"Input Dims": shapes, "Input type": types}),
            launch(at + 1, correlation, dur=2),
            kernel(kernel_name, time, duration, correlation),
        ]
        time += duration
    began = start + 5 * len(work) + 10
    wait = launch(began, int(start) + 90, "cudaDeviceSynchronize", max(time - began, 0) + 5)
    return [event(name, "user_annotation", start, time - start + 6), *events, wait]


def trace_of(folder: Path, *events: list[dict[str, Any]], device: str = "NVIDIA H100 80GB HBM3") -> Trace:
    path = folder / "step.json"
    path.write_text(json.dumps(kineto([each for several in events for each in several], device=device)))
    return sp.open(path)


def test_the_work_of_a_mixed_step_of_another_engine(tmp_path: Path) -> None:
    whole = characterize_trace(trace_of(tmp_path, step_events(MIXED, WORK)))
    facts, (row,) = whole.facts, whole.serving
    known = facts.duration_ns[np.isfinite(facts.flops)].sum() / facts.total_ns
    assert known == row.known_share > 0.99
    assert (row.phase, row.requests, row.tokens, row.bound) == ("mixed", 39, 8192, "compute")
    flops = dict(zip([facts.names[code] for code in facts.name.tolist()], facts.flops.tolist(), strict=True))
    pairs = sum(n * (n + 1) / 2 for n in LENGTHS) + DECODE * CONTEXT
    assert flops["kernel_unified_attention_2d"] == 4 * 64 * 64 * pairs
    assert flops["Cijk_Alik_Bljk"] == 2 * 8192 * 5120 * 2880
    # TraceLens (tests of its repository) has 1236.95 and 618.48 GFLOP for the two products of these experts, of which
    # it counts a weighted sum too.
    experts = flops["_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"]
    assert experts == 3 * 2 * 8192 * 4 * 3072 * 3072 == pytest.approx(1236.950581248e9 + 618.475290624e9, rel=1e-6)
    assert [line for line in whole.summary() if line.startswith("mixed: 1 step of 39 requests and 8,192 tokens")]


def operator(name: str, shapes: list[Any], types: list[str] | None = None, **more: Any) -> Operator:
    counted = operator_of(Call(name, shapes, types or [H] * len(shapes), **more))
    assert counted is not None
    return counted


def test_operators_of_engines_against_counts_by_hand() -> None:
    decode = ServingStep(decode=PhaseTokens(32, 32, 32 * 500))
    q, paged = [32, 32, 128], [900, 16, 8, 128]
    flops = 4 * 32 * 128 * 32 * 500
    cases = [
        operator("_vllm_fa2_C::varlen_fwd", [q, paged, paged, q, [33], [33]], step=decode),
        operator("sgl_kernel::fwd", [q, paged, paged], step=decode),
        operator("sglang_profiler::attention_paged_attention_ragged_7", [q, [9], q, paged, paged], step=decode),
        operator("_C::paged_attention_v1", [q, q, [900, 8, 16, 16, 8], [900, 8, 128, 16], []],
                 values=["", "", "", "", "8"], step=decode),
        operator("_rocm_C::paged_attention", [q, [1], [1], [1], q, [900, 8, 16, 16, 8], [900, 8, 128, 16], []],
                 values=["", "", "", "", "", "", "", "8"], step=decode),
        # A graph of 40 requests, 32 of which are real.
        operator("vllm::unified_attention", [[40, 32, 128], [40, 8, 128], [40, 8, 128]], step=decode),
    ]  # fmt: skip
    assert {case.flops for case in cases} == {flops}
    assert {case.kind for case in cases} == {"generation_attention"}
    weights = [[8, 2 * 1536, 4096], [8, 4096, 1536]]
    moe = operator("vllm::inplace_fused_experts", [[64, 4096], *weights, [64, 2], [64, 2]])
    assert moe == routed_experts(64, (4096, 1536, 2, 8))
    assert moe.flops == 2 * 64 * 2 * 3 * 4096 * 1536
    assert moe.bytes_read == pytest.approx(2 * (64 * 4096 + 8 * 3 * 4096 * 1536), rel=1e-6)
    assert operator("vllm::rocm_unquantized_gemm", [[5, 6], [7, 6], [7]]).flops == 2 * 5 * 6 * 7
    assert operator("_rocm_C::wvSplitK", [[7, 6], [5, 6]]).dims == (1, 5, 7, 6)
    fp8 = operator("_C::cutlass_scaled_mm", [[5, 7], [5, 6], [6, 7]], [H, "c10::Float8_e4m3fn", "c10::Float8_e4m3fn"])
    assert (fp8.flops, fp8.bytes_read, fp8.bytes_written) == (2 * 5 * 6 * 7, 5 * 6 + 6 * 7, 2 * 5 * 7)
    quantized = operator("_C::dynamic_scaled_fp8_quant", [[5, 6], [5, 6], [1]], ["c10::Float8_e4m3fn", H, "float"])
    assert (quantized.bytes_read, quantized.bytes_written) == (60, 34)


@pytest.mark.parametrize(
    ("name", "shapes", "more"),
    [
        ("vllm::unified_attention_with_output", [[32, 32, 128], [32, 8, 128], [32, 8, 128]], {}),  # no step
        ("vllm::unified_attention_with_output", [[32, 32, 128], [32, 8, 128]],
         {"step": ServingStep(decode=PhaseTokens(32, 32, None, None, None))}),
        ("vllm::unified_attention_with_output", [[9, 32, 128], [9, 8, 128]],
         {"step": ServingStep(decode=PhaseTokens(32, 32, 900))}),  # other rows than the step's
        ("vllm::unified_attention_with_output", [[32, 30, 128], [32, 8, 128]],
         {"step": ServingStep(decode=PhaseTokens(32, 32, 900))}),  # heads that no group divides
        ("vllm::moe_forward", [[8, 3072], [8, 32]], {"ranks": 2}),
        ("vllm::moe_forward", [[8, 999], [8, 32]], {}),
        ("vllm::inplace_fused_experts", [[8, 32], [4, 9, 32], [4, 32, 7], [8, 2]], {}),
        ("sglang::store_cache", [], {}),
    ],
)  # fmt: skip
def test_work_that_shapes_do_not_tell_is_unknown(name: str, shapes: list[Any], more: dict[str, Any]) -> None:
    assert operator_of(Call(name, shapes, [H] * len(shapes), **more)) is None


#: Sums that no requests have: (requests, query tokens, KV tokens, squares, products).
IMPOSSIBLE = [(32, 3, 900, 3, 900), (32, 32, 5, 32, 5), (32, 32, 0, 32, 0), (32, 64, 64, 10**9, 3), (2, 4, 9, 8, 999)]


@pytest.mark.parametrize("values", IMPOSSIBLE)
def test_sums_that_no_requests_have_are_unknown(values: tuple[int, ...]) -> None:
    step = ServingStep(decode=PhaseTokens(*values))
    assert step.decode.pairs is None
    q = [values[1], 32, 128]
    assert operator_of(Call("vllm::unified_attention", [q, q, q], [H] * 3, step=step)) is None


SERVING_OPERATORS = [
    name
    for row in tomllib.loads((Path(__file__).parents[1] / "datasets" / "operators.toml").read_text())["operators"]
    if row["rule"] in {rule.__name__ for rule in SERVING_RULES}
    for name in row["names"].split()
]
SIZES = st.one_of(st.integers(1, 64), st.sampled_from([0, -1, 128, 4096, 10**18]))
SHAPES = st.one_of(st.lists(SIZES, max_size=5), st.sampled_from(["x", None, 3, [[1, 2]], [[]], ["a"], [1.5], {}]))
TEXTS = st.sampled_from(["", "8", "0", "-1", "9" * 5000, "x", None, 3, [1], "\u00b2", 10**26])
COUNTS = st.one_of(st.none(), st.integers(-5, 64), st.just(1 << 61))
SIDES = st.builds(PhaseTokens, st.integers(0, 64), COUNTS, COUNTS, COUNTS, COUNTS)


@given(
    st.sampled_from(SERVING_OPERATORS), st.lists(SHAPES, max_size=9), st.lists(TEXTS, max_size=22),
    st.one_of(st.none(), st.builds(ServingStep, SIDES, SIDES)),
)  # fmt: skip
@settings(max_examples=500)
def test_no_call_of_an_engine_breaks_its_rule(
    name: str, shapes: list[Any], values: list[Any], step: ServingStep | None
) -> None:
    counted = operator_of(Call(name if "::" in name else f"aten::{name}", shapes, [H], values, step=step))
    sizes = () if counted is None else (counted.flops, counted.bytes_read, counted.bytes_written)
    assert all(0 <= size < np.inf for size in sizes)


def test_a_number_of_any_length_is_no_error() -> None:
    q, decode = [32, 32, 128], ServingStep(decode=PhaseTokens(32, 32, 900))
    values = ["", "", "", "", "9" * 5000]
    assert operator("_C::paged_attention_v1", [q, q, [9, 8, 16, 8], [9, 8, 8]], values=values, step=decode).flops > 0


def test_of_nested_annotations_one_with_sums_counts(tmp_path: Path) -> None:
    inner = event("step[DECODE bs=4]", "user_annotation", 10, 30)
    outer = event(
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk900sqsq32sqsk900)", "user_annotation", 0, 90
    )
    alone = event("step[DECODE bs=5]", "user_annotation", 100, 50)
    trace = trace_of(
        tmp_path, [outer, inner, alone, event("aten::mm", "cpu_op", 20, 5), event("aten::mm", "cpu_op", 120, 5)]
    )
    steps = serving_steps(trace)
    first = steps.start_ns[0]
    rows = steps.at(np.zeros(4, np.int64), first + np.array([20_000, 95_000, 120_000, -5]))
    assert [steps.step(row).requests if row >= 0 else None for row in rows.tolist()] == [32, None, 5, None]


def decode_work(batch: int, context: int) -> list[tuple[str, str, list[Any], float]]:
    """Return two layers of a decoder with their modelled kinds: norm, products, attention, experts of none."""
    norm = ("_C::fused_add_rms_norm", "fused_add_rms_norm_kernel", [[batch, 4096], [batch, 4096], [4096], []], 4.0)
    sizes = ((6144, 4096, 20.0), (4096, 4096, 15.0), (24576, 4096, 60.0), (4096, 12288, 40.0))
    products = [("aten::mm", f"gemm_{n}", [[batch, k], [k, n]], time) for n, k, time in sizes]
    q, kv = [batch, 32, 128], [batch, 8, 128]
    attention = ("vllm::unified_attention_with_output", "flash_fwd_kernel", [q, kv, kv, q], 50.0)
    silu = ("_C::silu_and_mul", "act_and_mul_kernel", [[batch, 12288], [batch, 24576]], 5.0)
    layer = [norm, products[0], attention, products[1], norm, products[2], silu, products[3]]
    return [*layer, *layer, ("aten::mm", "gemm_head", [[batch, 4096], [4096, 151936]], 300.0)]


def graph_of(folder: Path, batch: int = 32, context: int = 1024) -> KernelGraph:
    values = (batch, batch * context, batch, batch * context)
    name = f"execute_{batch}_context_0(sq0sk0sqsq0sqsk0)_generation_{batch}({sums(values)})"
    trace = trace_of(folder, step_events(name, decode_work(batch, context)))
    return build_graph(trace, [0], parameters=P)


def changed(graph: KernelGraph, what_if: str) -> KernelGraph:
    return parse_what_if(what_if)(graph, P)


def kernels_ns(graph: KernelGraph) -> float:
    tasks = graph.tasks
    return float(tasks.duration_ns[(tasks.kind == TaskKind.KERNEL) & graph.on_device()].sum())


def test_batch_and_context_change_the_rows_and_the_work(tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    assert step_requests(graph) == {(0, 0): StepRequests(decode=EqualRequests(32, 1, 1024))}
    same = changed(graph, "batch:32")
    assert (same.tasks.duration_ns == graph.tasks.duration_ns).all()
    double = changed(graph, "batch:64")
    assert step_requests(double) == {(0, 0): StepRequests(decode=EqualRequests(64, 1, 1024))}
    products = {each.dims for each in double.operators if each.kind == "matmul"}
    products -= {each.dims for each in graph.operators}
    assert products == {
        (1, 64, n, k) for n, k in ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096))
    }
    # Products of weights hardly grow, attention nearly doubles.
    assert kernels_ns(graph) < kernels_ns(double) < 1.6 * kernels_ns(graph)
    back = changed(double, "batch:32")
    assert kernels_ns(back) == pytest.approx(kernels_ns(graph), rel=0.02)
    longer = changed(graph, "context:8192")
    grows = longer.tasks.duration_ns > graph.tasks.duration_ns
    assert {graph.names[number] for number in graph.tasks.name[grows].tolist()} == {"flash_fwd_kernel"}
    times = [kernels_ns(changed(graph, f"batch:{n}")) for n in (1, 8, 32, 128, 512)]
    assert times == sorted(times)
    assert replay(double).makespan_ns > replay(graph).makespan_ns


@pytest.mark.parametrize(
    ("name", "rows", "tokens"),
    [
        # A captured graph of 32 requests serves 29, and prompts of unlike lengths are no multiple of their mean.
        (f"execute_29_context_0(sq0sk0)_generation_29({sums((29, 29_000, 29, 29_000))})", 32, 29),
        (f"execute_7_context_2({sums((2047, 2047, 1024**2 + 1023**2, 1024**2 + 1023**2))})_generation_0(sq0sk0)",
         2047, 2048),
    ],
)  # fmt: skip
def test_rows_of_padding_and_of_unlike_prompts_grow_too(tmp_path: Path, name: str, rows: int, tokens: int) -> None:
    graph = build_graph(trace_of(tmp_path, step_events(name, decode_work(rows, 0))), [0], parameters=P)
    ((_, step),) = step_requests(graph).items()
    assert (step.rows, step.tokens) == (rows, tokens)
    double = changed(graph, f"batch:{2 * step.requests}")
    assert {each.dims[1] for each in double.operators if each.kind == "matmul"} == {rows, 2 * rows}


def test_a_prefill_step_takes_other_prompts(tmp_path: Path) -> None:
    name = f"execute_2048_context_2({sums((2048, 2048, 2 * 1024**2, 2 * 1024**2))})_generation_0(sq0sk0sqsq0sqsk0)"
    logits = ("aten::mm", "gemm_head", [[2, 4096], [4096, 151936]], 30.0)
    work = [each for each in decode_work(2048, 0) if each[1] != "gemm_head"]
    graph = build_graph(trace_of(tmp_path, step_events(name, [*work, logits])), [0], parameters=P)
    assert step_requests(graph) == {(0, 0): StepRequests(EqualRequests(2, 1024, 1024))}
    longer, more = changed(graph, "context:2048"), changed(graph, "batch:4")
    dims = [{each.dims[1] for each in one.operators if each.kind == "matmul"} for one in (longer, more)]
    assert dims[0] >= {4096, 2}
    assert dims[1] >= {4096, 4}
    pairs = [
        sum(each.flops for each in one.operators if each.kind == "context_attention") for one in (graph, longer, more)
    ]
    assert pairs[1] - pairs[0] == pytest.approx(pairs[0] * (2048 * 2049) / (1024 * 1025), rel=1e-3)
    assert pairs[2] == pytest.approx(3 * pairs[0])


@pytest.mark.parametrize("what_if", ["batch:0", "context:0", "batch:-1", "batch:x"])
def test_sizes_that_cannot_be(what_if: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_what_if(what_if)


def test_a_step_without_known_requests_is_refused_with_the_reason(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, step_events("step[DECODE bs=32]", decode_work(32, 9)))
    for what_if in ("batch:64", "context:9"):
        with pytest.raises(InvalidInputError, match=r"no attention over a cache.*sqsk.*--capture"):
            changed(build_graph(trace, [0], parameters=P), what_if)
    with pytest.raises(InvalidInputError, match=r"no step of decode or prefill alone with known attention"):
        sp.serve(trace, sp_requests(tmp_path))


def test_ranks_share_a_layer_as_megatron_does(tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    shared = changed(graph, "tensor_parallel:4")
    added = shared.tasks.kind == TaskKind.COLLECTIVE
    assert sorted(shared.tasks.bytes[added].tolist()) == [*[32 * 4096 * 2] * 4, 32 * 151936 * 2]
    before, after = ({each.dims for each in one.operators if each.kind == "matmul"} for one in (graph, shared))
    assert after - before == {
        *((1, 32, 1536, 4096), (1, 32, 4096, 1024), (1, 32, 4096, 3072), (1, 32, 37984, 4096)),
    }
    heads = [each.dims[3:5] for each in shared.operators if each.kind == "generation_attention"]
    assert (8, 2) in heads
    assert kernels_ns(shared) < kernels_ns(graph)
    (old, *_), *_, new = ([each for each in one.operators if each.kind == "generation_attention"]
                          for one in (graph, changed(graph, "tensor_parallel:32")))  # fmt: skip
    assert new[-1].dims[3:5] == (1, 1)
    assert new[-1].bytes_read == pytest.approx(old.bytes_read / 8)  # each rank reads a head of keys
    norms = [graph.names[number] == "fused_add_rms_norm_kernel" for number in graph.tasks.name.tolist()]
    assert (shared.tasks.duration_ns[: len(norms)][norms] == graph.tasks.duration_ns[norms]).all()
    with pytest.raises(InvalidInputError, match="5 ranks do not divide"):
        changed(graph, "tensor_parallel:5")
    with pytest.raises(InvalidInputError, match="share the layers already"):
        changed(shared, "tensor_parallel:2")


def test_ranks_share_experts_and_serve_their_own_requests(tmp_path: Path) -> None:
    weights = [[64, 2 * 1536, 4096], [64, 4096, 1536]]
    moe = ("vllm::inplace_fused_experts", "fused_moe_kernel", [[32, 4096], *weights, [32, 4], [32, 4]], 200.0)
    values = (32, 32 * 1024, 32, 32 * 1024)
    name = f"execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32({sums(values)})"
    work = [*decode_work(32, 1024)[:4], moe, *decode_work(32, 1024)[4:]]
    graph = build_graph(trace_of(tmp_path, step_events(name, work)), [0], parameters=P)
    shared = changed(graph, "expert_parallel:8")
    (old,), (new,) = ([each for each in one.operators if each.kind == "experts" and (one is graph or each.dims[6] > 1)]
                      for one in (graph, shared))  # fmt: skip
    assert (new.dims[0], new.dims[6], new.flops, new.bytes_read) == (256, 8, old.flops, old.bytes_read / 8)
    added = shared.tasks.kind == TaskKind.COLLECTIVE
    assert shared.tasks.bytes[added].tolist() == [32 * 4 * 4096 * 2] * 2
    assert kernels_ns(shared) < kernels_ns(graph)
    with pytest.raises(InvalidInputError, match="no layer of experts"):
        changed(graph_of(tmp_path), "expert_parallel:8")


def rank_trace(folder: Path, rank: int, batch: int) -> Path:
    values = (batch, batch * 1000, batch, batch * 1000)
    name = f"execute_{batch}_context_0(sq0sk0sqsq0sqsk0)_generation_{batch}({sums(values)})"
    path = folder / f"rank{rank}.json"
    header = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    path.write_text(json.dumps(kineto(step_events(name, decode_work(batch, 1000)), **header)))
    return path


def test_each_rank_has_its_own_requests(tmp_path: Path) -> None:
    graph = build_graph(sp.open([rank_trace(tmp_path, 0, 32), rank_trace(tmp_path, 1, 48)]), [0], parameters=P)
    assert {key: step.tokens for key, step in step_requests(graph).items()} == {(0, 0): 32, (1, 0): 48}
    new = changed(graph, "batch:64")
    products = {new.operators[number].dims[1] for number in np.unique(new.tasks.operator[new.tasks.operator >= 0])
                if new.operators[number].kind == "matmul"}  # fmt: skip
    assert products == {64}


def test_a_size_that_is_changed_again_has_the_last_value(tmp_path: Path) -> None:
    trace = sp.open(rank_trace(tmp_path, 0, 32))
    (row,) = sp.project(trace, ["batch:64+batch:16"]).rows
    assert [note for note in row.notes if "(32 and 16 tokens" in note]


def test_a_kernel_that_starts_before_the_end_of_the_one_before_it_follows_it(tmp_path: Path) -> None:
    """By programmatic dependent launch a kernel starts 3 us early; with the first in half the time, it comes sooner."""
    first, second = (("aten::mm", name, [[64, 64], [64, 64]], 100.0) for name in ("gemm_a", "gemm_b"))
    events = step_events("iteration 0", [first, second])
    events[6]["ts"] -= 3
    graph = build_graph(trace_of(tmp_path, events), [0], parameters=P)
    assert replay(graph).makespan_ns - replay(changed(graph, "scale_kernels:gemm_a:0.5")).makespan_ns == pytest.approx(
        0.5 * 97_000, rel=0.01
    )


def sp_requests(folder: Path) -> Path:
    path = folder / "requests.csv"
    path.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(f"{i / 4},{100 + i},20\n" for i in range(40))
    )
    return path


def test_an_engine_takes_the_times_of_the_steps(tmp_path: Path) -> None:
    values = (32, 32 * 1024, 32, 32 * 1024)
    name = f"execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32({sums(values)})"
    trace = trace_of(tmp_path, step_events(name, decode_work(32, 1024)))
    served = sp.serve(trace, sp_requests(tmp_path), most_requests=64, most_tokens=512, rates=[1.0, 1e6])
    content = served.to_dict()
    assert [row["stable"] for row in content["rows"]] == [True, False]
    sizes, times = content["times"]["linear_ns"]
    cached, attention = content["times"]["generation_ns"]
    step = np.interp(32, sizes, times) + np.interp(32 * 1024, cached, attention)
    assert step == pytest.approx(sp.project(trace, ["batch:33"]).projection.baseline_ns, rel=0.05)
    layers, width = 2, 2 * 8 * 128 * 2
    assert content["limits"]["kv_tokens"] < 80 * 2**30 / (layers * width)
    assert "its attention is modelled" in " ".join(served.notes())
    assert served.tables()[0].rows
    with pytest.raises(InvalidInputError, match="kv_tokens"):
        sp.serve(trace, sp_requests(tmp_path), kv_tokens=-1)


def test_an_engine_needs_steps_of_one_phase_on_one_device(tmp_path: Path) -> None:
    file, requests = rank_trace(tmp_path, 0, 32), sp_requests(tmp_path)
    trace = sp.open(file)
    file.write_text(file.read_text().replace("A100-SXM4-80GB", "H200").replace("108", "132"))
    with pytest.raises(InvalidInputError, match="A100-SXM4-80GB and H200"):
        sp.serve([trace, sp.open(file)], requests)
    mixed = trace_of(tmp_path, step_events(MIXED, WORK))
    with pytest.raises(InvalidInputError, match="no step of decode or prefill alone"):
        sp.serve(mixed, requests)
    result = CliRunner().invoke(command, [str(rank_trace(tmp_path, 0, 32)), "--requests", str(requests), "--seed", "0"])
    drawn = sp.serve(trace, requests, seed=0)
    assert drawn.summary()[1] in result.output
    assert drawn.summary()[1] != sp.serve(trace, requests).summary()[1]
    half = min(drawn.rows(), key=lambda row: abs(row["utilization"] - 0.5))
    assert f"at {half['rate']:.3g} requests/s" in drawn.summary()[1]
    with pytest.raises(InvalidInputError, match="kv_tokens of the engine is 0"):
        sp.serve(trace, requests, kv_tokens=0)


def test_weights_of_experts_count_as_stored() -> None:
    layer = (3072, 3072, 4, 128)
    assert _weights(routed_experts(7, layer, weight_bytes=0.5)) == pytest.approx(3 * 128 * 3072**2 / 2)


@pytest.fixture(scope="module")
def sglang() -> dict[str, Trace]:
    if not SHARED.is_dir():
        pytest.skip("the shared traces are not here")
    capture = SHARED / "sglang_decode_capture_bs32.json.gz"
    return {"decode": sp.open(SHARED / "sglang_Qwen3-8B_decode.json.gz", captures=capture),
            "prefill": sp.open(SHARED / "sglang_Qwen3-8B_prefilldecode.json.gz")}  # fmt: skip


def test_steps_of_sglang(sglang: dict[str, Trace]) -> None:
    found = {}
    for name, trace in sglang.items():
        (row,) = sp.characterize(trace).serving
        found[name] = (row.phase, row.requests, row.tokens)
        assert row.known_share > 0.99
        facts = kernel_facts(trace)
        assert facts.duration_ns[np.isfinite(facts.bytes)].sum() > 0.99 * facts.total_ns
    assert found == {"decode": ("decode", 32, 32), "prefill": ("prefill", 15, 15_360)}


def test_flop_of_sglang_are_the_closed_forms_and_those_of_tracelens(sglang: dict[str, Trace]) -> None:
    """TraceLens' reference tables (tests of its repository), GFLOP of a call; it leaves the diagonal of prompts out."""
    flops: dict[tuple[str, str], set[float]] = defaultdict(set)
    for name, trace in sglang.items():
        facts = kernel_facts(trace)
        for class_ in ("gemm", "attention"):
            chosen = facts.in_classes({class_}) & (facts.flops > 0)
            flops[name, class_] = {round(each / 1e9, 9) for each in facts.flops[chosen].tolist()}
    assert flops["decode", "attention"] == {0.53714944} == {4 * 32 * 128 * 32785 / 1e9}
    assert flops["decode", "gemm"] == {6.442450944, 3.221225472, 1.610612736, 1.073741824, 39.829110784}
    (prompts,) = flops["prefill", "attention"]
    assert prompts == pytest.approx(4 * 32 * 128 * 15 * 1024 * 1025 / 2 / 1e9)
    assert prompts == pytest.approx(128.84901888, rel=0.002)
    assert len(flops["prefill", "gemm"]) == 5


def test_an_engine_of_sglang(sglang: dict[str, Trace], tmp_path: Path) -> None:
    phases = sp.serve(sglang["decode"])
    assert phases.to_dict()["classes"]["decode"][0]["name"] == "gemm"
    served = sp.serve([sglang["decode"], sglang["prefill"]], sp_requests(tmp_path), rates=[2.0])
    # Weights of 14 GiB and 36 layers of 8 heads of 128 elements, of keys and of values.
    assert served.limits.kv_tokens == pytest.approx((0.9 * 192 * 2**30 - 15.1e9) / (36 * 2 * 8 * 128 * 2), rel=0.02)
    (row,) = served.rows()
    assert 8e-3 < row["tpot_p50_low_s"] <= row["tpot_p50_s"] <= row["tpot_p50_high_s"] < 12e-3


def test_re_timed_steps_against_measured_operators() -> None:
    """The table that `benchmarks/serving/accuracy_of_steps.py` writes: steps of three devices and three frameworks."""
    text = (Path(__file__).parent / "accuracy" / "serving_steps.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    groups: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        groups[row["phase"], row["fits"]].append(row)
    assert set(groups) == {(phase, fits) for phase in ("decode", "prefill") for fits in ("own", "others")}
    for several in groups.values():
        assert np.mean([abs(float(row["error"])) for row in several]) < 0.09
    left_out = [row for row in rows if row["fits"] == "others"]
    assert 0.85 <= np.mean([int(row["inside"]) for row in left_out]) <= 0.95


def test_mixed_attention_is_that_of_both_phases() -> None:
    prefill, decode, heads = PhaseTokens(1, 8, 8, 64, 64), PhaseTokens(4, 4, 400), AttentionHeads(8, 8, 64, 64)
    mixed = request_attention(prefill, decode, heads)
    alone = [request_attention(prefill, PhaseTokens(), heads), request_attention(PhaseTokens(), decode, heads)]
    assert mixed.flops == sum(each.flops for each in alone)
    assert [each.dims for each in by_phase(mixed)] == [each.dims for each in alone]
    assert sum(each.flops for each in by_phase(mixed)) == pytest.approx(mixed.flops)
    with pytest.raises(InvalidInputError):
        request_attention(PhaseTokens(), PhaseTokens(), heads)
