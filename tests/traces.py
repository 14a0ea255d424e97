"""A tiny Kineto file for the tests (one rank, two steps, two streams, a copy, a blocking call); a job; joins."""

import json
from pathlib import Path
from typing import Any

from profilers.ingest.join import EVENT_KINDS, add_counters, check_joined, common_ranks, match_nodes
from profilers.ingest.linking import LINK_COLUMNS, link_rows
from profilers.ingest.stage import Stage
from profilers.trace.schema import KINDS
from profilers.trace.trace import Trace
from seqpoint import Layout, TrainingJob, Transformer, synthesize


def event(name: str, cat: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """Return one complete event on the host's thread, or on the stream that `args` name."""
    place = {"pid": 0, "tid": args["stream"]} if "stream" in args else {"pid": 10, "tid": 10}
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, **place, "args": args}


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **more: Any) -> dict[str, Any]:
    """Return a kernel of 108 workgroups, which fills an A100 once."""
    shape = {"grid": [108, 1, 1], "block": [256, 1, 1], "device": 0}
    return event(name, "kernel", ts, dur, **{"stream": stream, "correlation": correlation, **shape, **more})


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel", dur: float = 5) -> dict[str, Any]:
    """Return a call of the runtime."""
    return event(name, "cuda_runtime", ts, dur, correlation=correlation)


def step(number: int, t: float) -> list[dict[str, Any]]:
    """Return one step of 1000 us that begins at `t`: GEMM, add, a collective beside a second GEMM, a wait."""
    c = 10 * number
    meta = {
        "Collective name": "allgather",
        "In msg nelems": 1000,
        "Out msg nelems": 4000,
        "Group size": 1,
        "dtype": "Float",
    }
    return [
        event(f"ProfilerStep#{number}", "user_annotation", t, 1000),
        event(
            "aten::mm",
            "cpu_op",
            t + 10,
            40,
            **{"Input Dims": [[32 * number, 64], [64, 64]], "Input type": ["float", "float"]},
        ),
        launch(t + 20, c + 1),
        launch(t + 100, c + 2),
        launch(t + 120, c + 3, "cudaStreamWaitEvent", 2),
        launch(t + 130, c + 4),
        launch(t + 150, c + 5),
        launch(t + 200, c + 6, "cudaDeviceSynchronize", 700),
        kernel("ampere_sgemm_128x64_nn", t + 30, 200, c + 1),
        kernel("vectorized_elementwise_kernel", t + 231, 100, c + 2),
        kernel("ncclDevKernel_AllGather_RING_LL", t + 332, 300, c + 4, stream=20, **meta),
        kernel("ampere_sgemm_128x64_nn", t + 340, 400, c + 5),
    ]


def kineto(events: list[dict[str, Any]], **header: Any) -> dict[str, Any]:
    """Return a whole document for an A100."""
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "totalGlobalMem": 85899345920}
    return {"schemaVersion": 1, "deviceProperties": [device], **header, "traceEvents": events}


def write_trace(path: Path, steps: int = 2, **header: Any) -> Path:
    """Write a file of some steps and return its path."""
    events = [e for number in range(1, steps + 1) for e in step(number, 1_000.0 * number)]
    path.write_text(json.dumps(kineto(events, **header)))
    return path


def staged(trace: Trace) -> Stage:
    """Return a stage with the rows of a trace and their ids."""
    stage = Stage(held=LINK_COLUMNS)
    for kind in KINDS:
        table = trace.tables[kind]
        stage.write(kind, dict(zip(table.schema.names, table.columns, strict=True)))
    return stage


def link(trace: Trace) -> Trace:
    """Return the trace of one file, linked as `ingest` links a recording."""
    stage = staged(trace)
    counts = link_rows(stage)
    return trace.with_tables(**stage.tables()).with_quality(counts)


def join_counters(trace: Trace, counted: Trace) -> Trace:
    """Return `trace` with the counters of `counted`, joined as `ingest` joins them."""
    table, counts = add_counters(trace.kernels, trace.counters, counted, trace.next_id())
    return trace.with_tables(counters=table).with_quality(counts)


def join_execution_trace(trace: Trace, et: Trace) -> Trace:
    """Return `trace` with what the nodes of `et` know of its operators, joined as `ingest` joins them."""
    matched = match_nodes(trace.tables, et.ops, common_ranks(trace.meta.ranks, et.meta.ranks))
    joined = matched.counts["nodes_joined"]
    check_joined(joined)
    tables = {kind: matched.fill(kind, trace.tables[kind]) for kind in EVENT_KINDS}
    counts = {**matched.counts, "nodes_without_event": et.ops.num_rows - joined}
    return trace.with_tables(**tables).with_quality(counts)


def transformer(*lengths: int, tensor: int = 4, device: str = "MI300X") -> Trace:
    """Return the synthetic trace of a transformer of one layer, with an iteration for each sequence length."""
    model = Transformer("transformer", "megatron", 1, 4096, 32, 16384, 51200)
    return synthesize(TrainingJob(model, lengths[0], 4, 2, Layout(tensor, 2)), device, lengths=lengths)
