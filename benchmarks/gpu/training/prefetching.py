"""A trace of a loop that fetches the next batch while it computes: products on one stream, copies on another."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.clock import laps, scratch, synchronize
from benchmarks.gpu.step import Machine, Step, Tables
from benchmarks.gpu.tracing import Marked, record

__all__ = ["prefetch_steps"]

_SEED = 22
_TRACED, _WARM, _TIMED = 5, 3, 10


def prefetch_steps(_facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return the one step; at full size 1.6 TFLOP of products beside a copy of 64 MiB."""
    side, rows, products = (4096, 8192, 6) if size == "full" else (16, 8, 2)
    needs = frozenset({"profiler", "pinned"})
    return [Step("e/trace/prefetch", "e", 4.0, partial(_traced, side, rows, products), needs)]


class _Loop:
    """A loop with two buffers on the device: one is computed on while the other is filled. Nothing is allocated."""

    def __init__(self, device: str, side: int, rows: int, products: int) -> None:
        self.device, self.products = device, products
        on_gpu = torch.device(device).type == "cuda"
        generator = torch.Generator().manual_seed(_SEED)
        host = [torch.randn((rows, side), generator=generator).bfloat16() for _ in range(2)]
        self.host = [one.pin_memory() if on_gpu else one for one in host]
        self.buffers = [one.to(device) for one in host]
        self.weight = (torch.randn((side, side), generator=generator) / side**0.5).bfloat16().to(device)
        self.stream = torch.cuda.Stream(device) if on_gpu else None

    def step(self, i: int) -> None:
        """Start to fetch the next batch, and compute this one, which was fetched in the step before."""
        if self.stream:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            self.stream.wait_stream(current)  # the buffer that is filled was computed on in the step before
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            self.buffers[(i + 1) % 2].copy_(self.host[(i + 1) % 2], non_blocking=True)
        batch = self.buffers[i % 2]
        for _ in range(self.products):
            batch = torch.relu(batch @ self.weight)


def _traced(side: int, rows: int, products: int, machine: Machine, files: Path) -> Tables:
    with scratch(machine.device, _SEED):
        loop = _Loop(machine.device, side, rows, products)
        synchronize(machine.device)
        for i in range(_WARM):
            loop.step(i)
        times = laps(machine.device, loop.step, _TIMED)
        marked = [Marked(i, partial(loop.step, i), None, rows) for i in range(_TRACED)]
        record(machine.device, files, "prefetch", marked)
        del loop, marked
    return {
        "steps": [
            {
                "model": "prefetch", "configuration": f"{products} products of {side}", "sequence_length": None,
                "batch": rows, "dtype": "bf16", "repetition": i, "duration_ns": duration,
            }
            for i, duration in enumerate(times)
        ]
    }  # fmt: skip
