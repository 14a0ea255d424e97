"""Part f: how long single operators take by shape and type, as `seqpoint calibrate kernels` reads it.

Shapes are drawn with a fixed seed, their logarithms evenly, in the ranges of NeuSight's data set and some above. A time
is the median over repetitions of a mean over launches in a row, which find their operands in the caches where they fit;
the device is held until they are queued, so that it is the device's time alone.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.clock import repeated, require, scratch
from benchmarks.gpu.launches import launches
from benchmarks.gpu.step import Machine, Step, Tables
from benchmarks.gpu.training.trainer import TYPES
from benchmarks.gpu.work import DTYPE_BYTES
from profilers.errors import SeqPointError

__all__ = ["Shape", "operands", "operation", "shapes", "steps"]

_SEED = 23
_REPETITIONS, _LEAST_NS = 5, 300_000
#: Of FP32 and BF16: products that take about 10 ms on a large GPU, and what all operands may take.
_MOST_FLOPS = {"fp32": 4e11, "bf16": 4e12}
_MOST_BYTES = 4e9
_PRODUCTS = ("linear", "bmm")
_OF_ONE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "addu": lambda x: x + 1.5,
    "mulu": lambda x: x * 1.5,
}
_OF_TWO: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"add": torch.add, "mul": torch.mul, "div": torch.div}


@dataclass(frozen=True)
class Shape:
    """An operator and its sizes, as the tables name them.

    `B` products of an (M, N) by an (N, K) matrix; or `B` rows of `H` elements. The others are None.
    """

    op: str
    B: int
    M: int | None = None
    N: int | None = None
    K: int | None = None
    H: int | None = None

    @property
    def flops(self) -> int:
        """Of a product; else 0."""
        return 2 * self.B * self.M * self.N * self.K if self.M and self.N and self.K else 0

    @property
    def elements(self) -> int:
        """Of all operands and the result."""
        if self.M and self.N and self.K:
            weights = self.N * self.K * (self.B if self.op == "bmm" else 1)
            return self.B * self.M * (self.N + self.K) + weights
        return self.B * (self.H or 1) * (3 if self.op in _OF_TWO else 2)


def steps(facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return the steps of part f, one an operator (or the elementwise ones together), type and batch of shapes.

    Parameters
    ----------
    facts : mapping
        Of the device; `name` and `memory_bytes` are read.
    size : str
        ``"full"``; all others are small enough for a test on a CPU.
    """
    return [
        Step(f"f/{name}/{dtype}/{batch}", "f", 2.5 if size == "full" else 0.5,
             partial(_measured, facts, shapes(name, dtype, batch, size), dtype))
        for name, batches in (("linear", 2), ("bmm", 2), ("softmax", 1), ("ln", 1), ("elementwise", 2))
        for batch in range(batches if size == "full" else 1)
        for dtype in DTYPE_BYTES
    ]  # fmt: skip


def shapes(name: str, dtype: str, batch: int, size: str) -> list[Shape]:
    """Return the shapes of a step, the same on every device.

    Parameters
    ----------
    name : str
        An operator, or ``"elementwise"`` for all of these by turns.
    dtype : str
        On which it depends how large a product may be.
    batch : int
    size : str
    """
    rng = random.Random(f"{_SEED} {name} {dtype} {batch}")
    ops = [*_OF_TWO, *_OF_ONE] if name == "elementwise" else [name]
    count = (44 if name in _PRODUCTS else 54) if size == "full" else max(3, len(ops))
    found: list[Shape] = []
    while len(found) < count:
        one = _drawn(rng, ops[len(found) % len(ops)], size)
        if one.flops <= _MOST_FLOPS[dtype] and one.elements * DTYPE_BYTES[dtype] <= _MOST_BYTES and one not in found:
            found.append(one)
    return found


def _drawn(rng: random.Random, op: str, size: str) -> Shape:
    """Draw a shape; every second product has sizes that are multiples of 64, as most layers have."""
    if size != "full":
        if op in _PRODUCTS:
            return Shape(op, 1 if op == "linear" else rng.randint(2, 5), *(rng.randint(2, 12) for _ in range(3)))
        return Shape(op, rng.randint(2, 9), H=rng.randint(2, 9))
    multiple = rng.choice((1, 64))
    if op == "linear":
        return Shape(op, 1, _log(rng, 16, 32768, multiple), *(_log(rng, 64, 32768, multiple) for _ in range(2)))
    if op == "bmm":
        return Shape(op, _log(rng, 2, 1024), *(_log(rng, 16, 4096, multiple) for _ in range(3)))
    return Shape(op, _log(rng, 256, 262144), H=_log(rng, 64, 16384, rng.choice((1, 8))))


def _log(rng: random.Random, least: int, most: int, multiple: int = 1) -> int:
    drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
    return max(1, round(drawn / multiple)) * multiple


def operands(shape: Shape, dtype: str, device: str) -> tuple[Tensor, ...]:
    """Return what an operator reads."""
    make = partial(torch.randn, dtype=TYPES[dtype], device=device)
    if shape.op == "linear":
        return make(shape.B * shape.M, shape.N), make(shape.K, shape.N)
    if shape.op == "bmm":
        return make(shape.B, shape.M, shape.N), make(shape.B, shape.N, shape.K)
    first = make(shape.B, shape.H)
    if shape.op in _OF_TWO:
        return first, make(shape.B, shape.H)
    return (first, make(shape.H), make(shape.H)) if shape.op == "ln" else (first,)


def operation(op: str) -> Callable[..., Tensor]:
    """Return what computes an operator of its operands. A linear layer is without bias: the product alone."""
    if op in _OF_ONE:
        return _OF_ONE[op]
    if op in _OF_TWO:
        return _OF_TWO[op]
    if op == "ln":
        return lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias)
    return {"linear": functional.linear, "bmm": torch.bmm, "softmax": partial(torch.softmax, dim=-1)}[op]


def _measured(facts: Mapping[str, Any], drawn: Sequence[Shape], dtype: str, machine: Machine, _files: Path) -> Tables:
    """Time every shape, then look once at all of them with a profiler where there is one."""
    device = machine.device
    most = max(shape.elements for shape in drawn) * DTYPE_BYTES[dtype]
    require(facts.get("memory_bytes"), 2 * most, f"the largest {drawn[0].op}")
    with scratch(device, _SEED), torch.no_grad():
        times = [_time(device, shape, dtype) for shape in drawn]
        known = _kernels(machine, drawn, dtype)
    return {
        "operators": [
            {
                "op": shape.op, "device": facts["name"], "B": shape.B, "M": shape.M, "N": shape.N, "K": shape.K,
                "H": shape.H, "latency_ms": time / 1e6, "dtype": dtype, **_launch_columns(launch),
            }
            for shape, time, launch in zip(drawn, times, known, strict=True)
        ]
    }  # fmt: skip


def _kernels(machine: Machine, drawn: Sequence[Shape], dtype: str) -> list[dict[str, Any]]:
    """Return which kernels a profiler saw; none without one, or where it fails: the times are worth having."""
    if "profiler" in machine.features:
        with suppress(RuntimeError, OSError, ValueError, SeqPointError):  # one of the device is found after the step
            return launches(machine.device, _calls(machine.device, drawn, dtype))
    return [{} for _ in drawn]


def _time(device: str, shape: Shape, dtype: str) -> float:
    call = partial(operation(shape.op), *operands(shape, dtype, device))
    for _ in range(2):
        call()
    return statistics.median(repeated(device, call, _REPETITIONS, least_ns=_LEAST_NS))


def _calls(device: str, drawn: Sequence[Shape], dtype: str) -> Iterator[Callable[[], object]]:
    for shape in drawn:
        yield partial(operation(shape.op), *operands(shape, dtype, device))


def _launch_columns(launch: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        f"{what}_{axis}": (launch.get(what) or (None, None, None))[i]
        for what in ("grid", "block")
        for i, axis in enumerate("xyz")
    }
    return {"kernel_name": launch.get("name"), **sizes}
