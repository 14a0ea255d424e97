"""A loop that fetches the next batch while it computes, and a trace of it with copies on a stream of their own."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.clock import laps, scratch, synchronize
from benchmarks.gpu.step import Machine, Step, Tables
from benchmarks.gpu.tracing import Marked, record

__all__ = ["prefetch_steps", "prefetching"]

_SEED = 22
_TRACED, _WARM, _TIMED = 5, 3, 10


def prefetch_steps(_facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return the one step; at full size 1.6 TFLOP of products beside a copy of 64 MiB."""
    side, rows, products = (4096, 8192, 6) if size == "full" else (16, 8, 2)
    needs = frozenset({"profiler", "pinned"})
    return [Step("e/trace/prefetch", "e", 4.0, partial(_traced, side, rows, products), needs)]


def prefetching(side: int, rows: int, products: int, how: str, device: str) -> Callable[[int], object]:
    """Return a step that copies the next batch from the host and multiplies the batch before.

    Parameters
    ----------
    side, rows, products : int
        A batch is (rows, side); it is multiplied `products` times by a (side, side) matrix.
    how : str
        ``"pageable"`` (memory of the host that the driver stages; the host waits), ``"pinned"`` (the copy is queued on
        the stream of the products) or ``"stream"`` (on a stream of its own, beside the products).
    device : str
        Device, as PyTorch writes it.
    """
    on_gpu = torch.device(device).type == "cuda"
    generator = torch.Generator().manual_seed(_SEED)
    host = [torch.randn((rows, side), generator=generator).bfloat16() for _ in range(2)]
    sources = [each.pin_memory() for each in host] if on_gpu and how != "pageable" else host
    buffers = [each.to(device) for each in host]
    weight = (torch.randn((side, side), generator=generator) / side**0.5).bfloat16().to(device)
    copier = torch.cuda.Stream(device) if on_gpu and how == "stream" else None

    def step(i: int) -> object:
        if copier:
            current = torch.cuda.current_stream(device)
            current.wait_stream(copier)
            copier.wait_stream(current)  # the step before computed on the buffer that is filled now
        with torch.cuda.stream(copier) if copier else nullcontext():
            buffers[(i + 1) % 2].copy_(sources[(i + 1) % 2], non_blocking=how != "pageable")
        batch = buffers[i % 2]
        for _ in range(products):
            batch = torch.relu(batch @ weight)
        return batch

    return step


def _traced(side: int, rows: int, products: int, machine: Machine, files: Path) -> Tables:
    with scratch(machine.device, _SEED):
        loop = prefetching(side, rows, products, "stream", machine.device)
        synchronize(machine.device)
        for i in range(_WARM):
            loop(i)
        times = laps(machine.device, loop, _TIMED)
        marked = [Marked(i, partial(loop, i), None, rows) for i in range(_TRACED)]
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
