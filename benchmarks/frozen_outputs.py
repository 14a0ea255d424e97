"""Freeze what every command answers, and compare two checkouts by it. A step that only moves code changes nothing.

    python benchmarks/frozen_outputs.py write ../shared before/     # in the old checkout
    python benchmarks/frozen_outputs.py write ../shared after/      # in the new one
    python benchmarks/frozen_outputs.py compare before/ after/      # exit 1 at a difference

Names of groups behind the folder of `write` (`alexnet one alone_sweep`) run only these; `compare` skips answers that
one side lacks.

Every command of docs/commands.md runs with --json on 20 recorded traces and 10 predicted jobs. Each answer is a file:
the exit status, the JSON or the text, and the messages. Numbers may differ by 1e-9 of their size. Paths of the work
folder are left out.
"""

import json
import math
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

TOLERANCE = 1e-9
SAMPLES = Path("datasets/samples/cpu_epoch")
PTX = Path("datasets/ptx/triton")
MEASURED = Path("datasets/measured")

#: Recorded traces, below `shared`: GPUs of both vendors, one rank and several, each reader, with and without steps.
TRACES = {
    "alexnet": ["data/traces/kineto/hta/critical_path_alexnet.json.gz"],
    "event_sync": ["data/traces/kineto/hta/cuda_event_sync_multi_stream.json.gz"],
    "minitoy": ["data/traces/kineto/hta/mi250_minitoy.json.gz"],
    "mtia": ["data/traces/kineto/hta/mtia_inference.json.gz"],
    "triton": ["data/traces/kineto/hta/triton_example.json.gz"],
    "cpu_only": ["data/traces/kineto/hta/cpu_only_rank34.json.gz"],
    "multistream": ["data/traces/kineto/hta/multistream_a100_rank0.json.gz"],
    "qwen_h100": ["data/traces/kineto/tracelens/h100/Qwen_Qwen1.5-0.5B-Chat.json.gz"],
    "bert_mi300": ["data/traces/kineto/tracelens/mi300/gaunernst_bert-small-uncased.json.gz"],
    "compiled": ["data/traces/kineto/tracelens/other/torch_compile_triton_mi300.json.gz"],
    "decode": ["data/traces/kineto/tracelens/other/sglang_Qwen3-8B_decode.json.gz"],
    "linear": ["data/traces/kineto/misc/linear_rtx2080ti_30iters.json.gz"],
    "dlrm8": ["data/traces/kineto/dlrm8/*.json.gz"],
    "nanogpt8": ["data/traces/kineto/nanogpt8/*.json.gz"],
    "ddp4": ["data/traces/kineto/ddp4/mi300_4ranks_merged.json.gz"],
    "nanogpt1": ["new/traces/kineto/nanogpt1/h100_gpu_bound.json.gz"],
    "fuser": ["data/traces/nsys/fuser_h200_2024.6.sqlite"],
    "mfu": ["data/traces/nsys/mfu_2gpu_before_2026.2.sqlite"],
    "rocprof": ["data/traces/rocm/rocprofv1_gfx942/results.db"],
    "xplane": ["new/traces/xplane/jax_conv_minimal_mi300x.xplane.pb"],
}
SMALL = ("--layers", "4", "--hidden", "1024", "--heads", "16", "--length", "512", "--global-batch", "16")
#: Predicted jobs: the options of `synthesize` for each.
JOBS = {
    "one": (*SMALL, "--steps", "2"),
    "tp2_pp2": (*SMALL, "--tp", "2", "--pp", "2", "--device", "MI300X"),
    "tp4_sequence": (*SMALL, "--tp", "4", "--sequence-parallel", "--recompute"),
    "dp4_zero": (*SMALL, "--dp", "4", "--sharding", "2", "--overlap-gradients", "--device", "H100-SXM5-80GB"),
    "interleaved": (*SMALL, "--pp", "2", "--chunks", "2", "--schedule", "interleaved", "--micro-batch", "2"),
    "zero_bubble": (*SMALL, "--pp", "2", "--schedule", "zero_bubble", "--micro-batch", "2"),
    "experts": (*SMALL, "--experts", "4", "--experts-per-token", "2", "--dp", "4", "--ep", "4", "--device", "MI300X"),
    "context": (*SMALL, "--cp", "2", "--attention", "flash", "--precision", "bf16", "--device", "H100"),
    "bert": ("--model", "bert_large", "--length", "128", "--precision", "fp32", "--optimizer", "lamb", "--device",
             "MI100", "--layers", "3"),
    "dlrm": ("--model", "dlrm", "--dp", "8", "--device", "MI300X"),
}  # fmt: skip
#: Commands for every trace; `{t}` is its folder, `{work}` a folder for what is written.
ON_TRACE = {
    "describe": ("describe", "{t}", "--json"),
    "describe_text": ("describe", "{t}"),
    "by": ("describe", "{t}", "--by", "kernel", "--by", "operator", "--by", "range", "--by", "host", "--json"),
    "iterations": ("iterations", "{t}", "--json"),
    "lengths": ("lengths", "{t}", "--json"),
    "select": ("select", "{t}", "--json"),
    "replay": ("replay", "{t}", "--json"),
    "characterize": ("characterize", "{t}", "--json"),
    "characterize_kernel": ("characterize", "{t}", "--by", "kernel", "--json"),
    "gemms": ("gemms", "{t}", "--json"),
    "analyze": ("analyze", "{t}", "--json"),
    "analyze_what_if": ("analyze", "{t}", "-w", "overlap:ideal", "--tasks", "copies", "--json"),
    "stragglers": ("analyze", "{t}", "--stragglers", "--json"),
    "scaling": ("scaling", "{t}", "--compute", "1,2", "--json"),
    "slice": ("slice", "{t}", "--rank", "0", "-o", "{work}/slice.trace"),
    "export": ("export", "{t}", "-o", "{work}/export.json"),
    "export_chakra": ("export", "{t}", "-o", "{work}/export.et"),
    "compare": ("compare", "{t}", "{t}", "--json"),
}
#: What-ifs for the traces of `PROJECTED`: each alone, so that one that fails does not hide the others.
WHAT_IFS = (
    "overlap:ideal", "overlap:none", "overlap:all", "c3:sp_rp", "dma_collectives", "ficco:auto", "t3:mca",
    "fuse_collectives", "scale_links:2", "scale_device:H100-SXM5-80GB", "scale_device:MI300X", "scale_clock:0.8",
    "scale_compute_units:0.5", "scale_memory_bandwidth:1.5", "limit_power:0.7", "change_world_size:64",
    "scale_host:0.5", "remove_launch_overhead", "concurrent_gemms:2", "cu_order:fair", "partition:collectives:0.1",
    "change_stream:collectives:new", "change_priority:collectives:1", "data_parallel:4", "tensor_parallel:8",
    "pipeline_parallel:2", "hidden:4096", "layers:8", "micro_batch:8", "sequence_length:2048", "experts:8",
    "quantize_weights:mx9", "cache_policy:Uncached", "scale_cache:L2:2", "memory_mapping:xor", "simulated_caches",
    "fuse:elementwise", "dtype:gemm:fp8", "remove:elementwise", "scale:gemm:0.5",
    "dma_collectives+scale_device:MI355X",
)  # fmt: skip
PROJECTED = ("alexnet", "qwen_h100", "bert_mi300", "ddp4", "nanogpt1", "one", "tp2_pp2", "dp4_zero", "experts", "dlrm")
#: Commands without a trace; `{data}` is shared/data, `{datasets}` the project's.
ALONE = {
    **{name: (name, "--json") for name in ("readers", "selectors", "formats", "devices", "what-ifs")},
    "device": ("devices", "MI300X", "--json"),
    "what_if": ("what-ifs", "t3"),
    "select_log": ("select", f"{SAMPLES}/log_threads1.csv", "--json"),
    "select_error": ("select", f"{SAMPLES}/log_threads1.csv", "--target-error", "1%", "--json"),
    "select_stratified": ("select", f"{SAMPLES}/log_threads1.csv", "--selector", "stratified", "--json"),
    "formats_job": ("formats", "--job", "{work}/job.toml", "--format", "mx9,mx6", "--device", "MI300X", "--json"),
    "scaling": ("scaling", "--hidden", "2048,4096", "--set", "heads=16", "--set", "tensor=8", "--json"),
    "scaling_gpus": ("scaling", "--gpus", "8,16,32", "--device", "H100-SXM5-80GB", "--json"),
    "sweep": ("sweep", "{work}/plan.toml", "-j", "1", "--json"),
    "memory_gemm": ("simulate", "memory", "gemm", "512", "512", "512", "--json"),
    "memory_attention": ("simulate", "memory", "--list", "--json"),
    "kernel": ("simulate", "kernel", f"{PTX}/softmax.toml", "--device", "V100-SXM2-16GB", "--json"),
    **{f"validate_{suite}": ("validate", suite, "--json") for suite in (
        "kernels", "collectives", "models", "training", "selection", "replay", "contention", "published",
    )},
    **{f"validate_{suite}_shared": ("validate", suite, "{data}", "--json") for suite in (
        "kernels", "collectives", "models", "training", "gemms", "memory",
    )},
}  # fmt: skip
PLAN = """what_ifs = ["nothing", "overlap:ideal", "scale_links:2", "scale_host:0.5"]
devices = ["A100-SXM4-80GB", "MI300X"]
[job]
layers = 4
hidden = 1024
heads = 16
length = 512
global_batch = 16
[grid]
tensor = [1, 2, 4]
micro_batch = [1, 2]
"""


def cases() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the group, the name and the arguments of each case; cases of one group run in one folder, in order."""
    for name, files in TRACES.items():
        yield name, "ingest", ("ingest", *(f"{{shared}}/{file}" for file in files), "-o", "{work}/t.trace", "--json")
    for name, options in JOBS.items():
        yield name, "synthesize", ("synthesize", *options, "-o", "{work}/t.trace", "--json")
    for name in (*TRACES, *JOBS):
        for case, arguments in ON_TRACE.items():
            yield name, case, arguments
    for name in PROJECTED:
        for what_if in WHAT_IFS:
            case = "project_" + re.sub(r"\W+", "_", what_if)
            yield name, case, ("project", "{t}", "-w", what_if, "--draws", "8", "-j", "1", "--json")
    for name, arguments in ALONE.items():
        yield f"alone_{name}", name, arguments


def answer_of(arguments: tuple[str, ...], places: dict[str, str]) -> dict[str, Any]:
    """Run a command in this process and return its exit status, its answer and its messages."""
    from click.testing import CliRunner

    from seqpoint.cli import cli

    given: list[str] = []
    for argument in arguments:
        path = argument.format(**places)
        given += sorted(map(str, Path(path).parent.glob(Path(path).name))) if "*" in path else [path]
    done = CliRunner().invoke(cli, given)
    error = done.exception
    crash = repr(error) if error is not None and not isinstance(error, SystemExit) else ""
    texts = [done.stdout, done.stderr, crash]
    for i, text in enumerate(texts):
        for place, path in sorted(places.items(), key=lambda item: -len(item[1])):
            text = text.replace(path, f"<{place}>")
        texts[i] = re.sub(r"compiling, once.*\n", "", text)
    try:
        out: Any = json.loads(texts[0])
    except ValueError:
        out = texts[0].splitlines()
    return {"exit": done.exit_code, "crash": texts[2], "out": out, "err": texts[1].splitlines()}


def write_group(group: tuple[str, list[tuple[str, tuple[str, ...]]]], shared: str, target: str) -> str:
    """Run the cases of a group that are not written yet."""
    name, members = group
    left = [(case, arguments) for case, arguments in members if not (Path(target) / f"{name}.{case}.json").exists()]
    if not left:
        return name
    with tempfile.TemporaryDirectory() as work:
        places = {"work": work, "t": f"{work}/t.trace", "shared": shared, "data": f"{shared}/data"}
        (Path(work) / "job.toml").write_text("[job]\nlayers = 4\nhidden = 1024\nheads = 16\nlength = 512\n")
        (Path(work) / "plan.toml").write_text(PLAN)
        first, *others = members
        for case, arguments in [first, *(member for member in others if member in left)]:
            answer = answer_of(arguments, places)
            for path in sorted(Path(work).glob("export*")) if case.startswith("export") else ():
                answer["crc"] = zlib.crc32(path.read_bytes())
            (Path(target) / f"{name}.{case}.json").write_text(json.dumps(answer, indent=1))
    return name


def write(shared: str, target: str, *chosen: str) -> None:
    """Write the answers of all cases or of some groups, two groups at a time; what is written already stays."""
    Path(target).mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for group, case, arguments in cases():
        if not chosen or group in chosen:
            groups.setdefault(group, []).append((case, arguments))
    with ProcessPoolExecutor(int(os.environ.get("FROZEN_PROCESSES", "2"))) as pool:
        waiting = [pool.submit(write_group, group, str(Path(shared).resolve()), target) for group in groups.items()]
        for task in waiting:
            print(task.result(), file=sys.stderr, flush=True)


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Yield each place at which two answers differ."""
    number = isinstance(before, int | float) and isinstance(after, int | float)
    if number and not isinstance(before, bool) and math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from differences(before.get(key, "absent"), after.get(key, "absent"), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{i}]")
    elif (before or "") != (after or ""):  # an error that is absent is None or empty
        yield f"{where}: {str(before)[:90]} -> {str(after)[:90]}"


def compare(before: str, after: str) -> int:
    """Print the cases that differ, three places each, and return how many there are."""
    first, second = ({path.name for path in Path(folder).glob("*.json")} for folder in (before, after))
    names = first & second
    changed = 0
    for name in sorted(names):
        answers = [json.loads((Path(folder) / name).read_text()) for folder in (before, after)]
        if places := list(differences(*answers)):
            changed += 1
            print(f"{name}: {len(places)} differences", *places[:3], sep="\n  ")
    print(f"{len(names)} answers, {changed} differ; {len(first ^ second)} stand on one side only")
    return changed


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        sys.exit(compare(*sys.argv[2:]) > 0)
