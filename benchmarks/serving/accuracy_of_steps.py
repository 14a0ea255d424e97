"""Regenerate tests/accuracy/serving_steps.csv: steps of decode and prefill, re-timed for other batches and lengths.

    python benchmarks/serving/accuracy_of_steps.py ../shared/data/operators > tests/accuracy/serving_steps.csv

A step has four products of weights, an attention over cached keys, and in every second case a layer of experts, drawn
from the operators that AIConfigurator measured in one framework on one device at both sizes. They are written as a
trace of that framework, with the annotation of the requests. `seqpoint.project` re-times it (`batch` for decode,
`context` for prefill), and the total is compared with that of the measured operators at the other size.

`own` takes the fits of the device, which have seen these operators. `others` leaves the device out.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import seqpoint as sp
from replay.calibration.parameters import Parameters
from replay.costs.kernels import KernelCalibration, read_measurements
from replay.costs.shipped import load_parameters
from seqpoint.projecting import ProjectOptions

COLUMNS = ("device", "framework", "phase", "before", "after", "fits", "measured_us", "projected_us", "error", "low_us",
           "high_us", "inside")  # fmt: skip
#: Error of a step that is allowed on average.
LIMIT = 0.20
#: Requests of decode from which others are projected, and largest of these; tokens of a prompt likewise.
_BATCHES, _MOST_BATCH = (32, 16), 256
_LENGTHS, _LEAST_LENGTH, _MOST_LENGTH = (1024, 2048), 512, 8192
#: Steps of each pair of sizes, products of a step, least elements of a weight, and draws of the parameters.
_EACH, _PRODUCTS, _WEIGHT, _DRAWS = 3, 4, 1 << 22, 32
_US = 1e6

Sizes = dict[tuple[float, ...], dict[int, float]]


@dataclass(frozen=True)
class Measured:
    """Measured times of a framework on a device, us, by shape and by rows.

    Parameters
    ----------
    products, decode, prefill, experts : dict
        By weight (n, k), by attention (tokens, heads, kv heads, width) or (heads, kv heads, width), by layer; each a
        dict of the time by tokens, requests, or length.
    """

    products: Sizes
    decode: Sizes
    prefill: Sizes
    experts: Sizes


@dataclass(frozen=True)
class Step:
    """Operators of a step with their measured times before and after, us.

    Parameters
    ----------
    phase : str
        ``"decode"`` or ``"prefill"``.
    sizes : tuple of int
        Requests or tokens of the prompt before and after.
    calls : tuple
        (kind, shape, time before, time after) of each operator.
    """

    phase: str
    sizes: tuple[int, int]
    calls: tuple[tuple[str, tuple[float, ...], float, float], ...]

    @property
    def total_us(self) -> tuple[float, float]:
        """Total time before and after."""
        return sum(call[2] for call in self.calls), sum(call[3] for call in self.calls)


def measured_tables(folder: Path) -> dict[tuple[str, str], Measured]:
    """Return the measured operators of BF16 by device and framework."""
    tables: dict[tuple[str, str], Measured] = {}
    for operators in read_measurements(folder):
        if operators.dtype != "bf16":
            continue
        key = operators.device.name, operators.library.split("_")[0]
        table = tables.setdefault(key, Measured({}, {}, {}, {}))
        for dims, seconds in zip(operators.dims.tolist(), operators.seconds.tolist(), strict=True):
            shape = _shape(operators.kind, tuple(dims), table)
            if shape is not None:
                into, name, size = shape
                into.setdefault(name, {}).setdefault(int(size), _US * seconds)
    return tables


def _shape(kind: str, dims: tuple[float, ...], table: Measured) -> tuple[Sizes, tuple[float, ...], float] | None:
    if kind == "matrix_matmul" and dims[2] * dims[3] >= _WEIGHT:
        return table.products, dims[2:], dims[1]
    if kind == "generation_attention" and dims[6] == 0 and dims[2] >= _LEAST_LENGTH and dims[3] >= 8:
        return table.decode, dims[2:6], dims[0]
    if kind == "context_attention" and dims[0] == 1 and dims[6] == 0 and dims[1] == dims[2] and dims[3] >= 8:
        return table.prefill, dims[3:6], dims[1]
    if kind == "experts" and dims[5:8] == (1, 1, 0) and dims[3] > 1:
        return table.experts, (*dims[1:5], dims[8]), dims[0]
    return None


def steps_of(table: Measured, rng: np.random.Generator) -> Iterator[Step]:
    """Yield steps that were measured at two sizes, drawn at random."""
    phases = (("decode", _BATCHES, (1, _MOST_BATCH), table.decode),
              ("prefill", _LENGTHS, (_LEAST_LENGTH, _MOST_LENGTH), table.prefill))  # fmt: skip
    for phase, bases, (least, most), attention in phases:
        for base in bases:
            sizes = sorted({size for times in attention.values() for size in times} - {base})
            for size in (size for size in sizes if least <= size <= most):
                yield from _drawn(table, attention, phase, (base, size), rng)


def _drawn(
    table: Measured, attention: Sizes, phase: str, sizes: tuple[int, int], rng: np.random.Generator
) -> Iterator[Step]:
    products, attentions, experts = (_both(each, sizes) for each in (table.products, attention, table.experts))
    if len(products) < _PRODUCTS or not attentions:
        return
    for number in range(_EACH):
        chosen = [("product", *products[i]) for i in rng.choice(len(products), _PRODUCTS, replace=False).tolist()]
        chosen.append((phase, *attentions[int(rng.integers(len(attentions)))]))
        if number % 2 and experts:
            chosen.append(("experts", *experts[int(rng.integers(len(experts)))]))
        yield Step(phase, sizes, tuple(chosen))


def _both(times: Sizes, sizes: tuple[int, int]) -> list[tuple[tuple[float, ...], float, float]]:
    """Return the shapes that were measured at both sizes, or at one row more, with their times."""
    found = []
    for shape, by_size in sorted(times.items()):
        pair = [next((by_size[each] for each in (size, size + 1) if each in by_size and (size > 256 or each == size)),
                     None) for size in sizes]  # fmt: skip
        if None not in pair:
            found.append((shape, *pair))
    return found


def trace_of(step: Step, device: str, path: Path) -> Path:
    """Write a step as a trace of vLLM: operators, launches and kernels, each launched before it can run."""
    size = step.sizes[0]
    tokens = size
    decode = step.phase == "decode"
    cached = next(int(shape[0]) for kind, shape, *_ in step.calls if kind == step.phase) if decode else size
    sums = f"sq{size}sk{size * cached}sqsq{size}sqsk{size * cached}" if decode else (
        f"sq{size}sk{size}sqsq{size * size}sqsk{size * size}")  # fmt: skip
    none = "sq0sk0sqsq0sqsk0"
    name = (f"execute_{size}_context_0({none})_generation_{size}({sums})" if decode
            else f"execute_{size}_context_1({sums})_generation_0({none})")  # fmt: skip
    events, time = [_event(name, "user_annotation", 0.0, 1e6)], 100.0
    for number, (kind, shape, before, _) in enumerate(step.calls, 1):
        op, kernel, dims = _call(kind, shape, tokens)
        types = ["c10::BFloat16"] * len(dims)
        events += [
            _event(op, "cpu_op", number * 5.0, 4.0, **{"Input Dims": dims, "Input type": types}),
            _event("cudaLaunchKernel", "cuda_runtime", number * 5.0 + 1, 2.0, correlation=number),
            _event(kernel, "kernel", time, before, correlation=number, device=0, stream=7, grid=[132, 1, 1],
                   block=[128, 1, 1]),
        ]  # fmt: skip
        time += before
    wait = _event("cudaDeviceSynchronize", "cuda_runtime", 60.0, time - 55.0, correlation=len(step.calls) + 1)
    events[0]["dur"] = time + 5.0
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": device}], "traceEvents": [*events, wait]}))
    return path


def _event(name: str, category: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    thread = 7 if category == "kernel" else 1
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": duration, "pid": 1, "tid": thread,
            "args": args}  # fmt: skip


def _call(kind: str, shape: tuple[float, ...], tokens: int) -> tuple[str, str, list[list[int]]]:
    """Return the operator, the kernel and the shapes of a call."""
    sizes = [int(each) for each in shape]
    if kind == "product":
        n, k = sizes
        return "aten::mm", "gemm_kernel", [[tokens, k], [k, n]]
    if kind == "experts":
        hidden, inter, topk, experts, gated = sizes
        weights = [[experts, inter * (1 + gated), hidden], [experts, hidden, inter]]
        return "vllm::inplace_fused_experts", "fused_moe_kernel", [[tokens, hidden], *weights, [tokens, topk]]
    heads, kv_heads, width = sizes[-3:]
    shapes = [[tokens, heads, width], [tokens, kv_heads, width], [tokens, kv_heads, width]]
    return "vllm::unified_attention_with_output", "flash_fwd_kernel", shapes


def rows_of(step: Step, device: str, framework: str, parameters: Mapping[str, Parameters]) -> list[dict[str, Any]]:
    """Return the scores of a step with each set of fits."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        trace = sp.open(trace_of(step, device, Path(folder) / "step.json"))
        what_if = f"{'batch' if step.phase == 'decode' else 'context'}:{step.sizes[1]}"
        for fits, each in parameters.items():
            options = ProjectOptions(parameters=each, draws=_DRAWS, jobs=1)
            result = sp.project(trace, [what_if], options=options).to_dict()
            row, (before, after) = result["rows"][0], step.total_us
            host = result["baseline_ns"] / 1e3 - before
            ours, ends = row["projected_ns"] / 1e3 - host, [result["baseline_ns"] / 1e3 / row[end] - host
                                                            for end in ("high", "low")]  # fmt: skip
            rows.append(dict(zip(COLUMNS, (
                device, framework, step.phase, *step.sizes, fits, f"{after:.1f}", f"{ours:.1f}",
                f"{ours / after - 1:.4f}", *(f"{end:.1f}" for end in ends), int(ends[0] <= after <= ends[1]),
            ), strict=True)))  # fmt: skip
    return rows


def main(folder: str) -> None:
    """Write the table to standard output."""
    shipped = load_parameters()
    calibration = shipped.calibration(KernelCalibration)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for (device, framework), table in sorted(measured_tables(Path(folder)).items()):
        without = shipped.with_calibration(calibration.without(device))
        rng = np.random.default_rng(0)
        for step in steps_of(table, rng):
            writer.writerows(rows_of(step, device, framework, {"own": shipped, "others": without}))


if __name__ == "__main__":
    main(*sys.argv[1:])
