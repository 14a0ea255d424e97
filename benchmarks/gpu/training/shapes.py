"""Training steps of one shape: BERT-Large, LeNet and a DLRM, each timed some times; and a small trace of each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.clock import laps, require, scratch
from benchmarks.gpu.step import Machine, Step, Tables
from benchmarks.gpu.tracing import Marked, record
from benchmarks.gpu.training.fixed import Bert, LeNet, Recommender
from benchmarks.gpu.training.trainer import Trainer, trainer

__all__ = ["Case", "cases", "clicks", "shape_steps", "shape_trace_steps", "text"]

_SEED = 21
_WARM, _REPETITIONS = 3, 10


@dataclass(frozen=True)
class Case:
    """A model, a batch of one shape, and what it is trained in.

    Parameters
    ----------
    model, configuration : str
    make : callable
    inputs : callable
        From a generator on the host to what the model's loss wants.
    batch : int
    dtype : str
    sequence_length : int or None
    need_bytes : int
        Of memory, about.
    traced : int
        Iterations in its trace; 0 for none.
    optimizer : callable or None
    """

    model: str
    configuration: str
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], tuple[Tensor, ...]]
    batch: int
    dtype: str = "fp32"
    sequence_length: int | None = None
    need_bytes: int = 0
    traced: int = 0
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None

    @property
    def name(self) -> str:
        """What tells it from other cases."""
        length = "" if self.sequence_length is None else f"_n{self.sequence_length}"
        return f"{self.model}{length}_b{self.batch}_{self.dtype}"


def cases(size: str) -> list[Case]:
    """Return all cases, those that take longest last."""
    return [*_small(size), *_bert(size)]


def shape_steps(facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return a step for each case."""
    return [
        Step(f"e/step/{case.name}", "e", _seconds(case, size), partial(_timed, facts, case)) for case in cases(size)
    ]


def _seconds(case: Case, size: str) -> float:
    """Guess how long a case takes on a large GPU: 13 steps of 2 GFLOP a token of BERT, at 40 and 250 TFLOP/s."""
    tokens = case.batch * (case.sequence_length or 0) if size == "full" else 0
    return 1.0 + (_WARM + _REPETITIONS) * tokens * 2e9 / (4e13 if case.dtype == "fp32" else 2.5e14)


def shape_trace_steps(facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return a step for each case that is traced."""
    needs = frozenset({"profiler"})
    return [
        Step(f"e/trace/{case.name}", "e", 3.0 if size == "full" else 1.0, partial(_traced, facts, case), needs)
        for case in cases(size)
        if case.traced
    ]


def _bert(size: str) -> Iterator[Case]:
    if size == "full":
        hidden, layers, heads, vocabulary, shapes = 1024, 24, 16, 30522, ((128, 4), (128, 32), (512, 4), (512, 32))
    else:
        hidden, layers, heads, vocabulary, shapes = 16, 2, 2, 64, ((8, 2), (16, 2))
    for length, batch in shapes:
        for dtype in ("bf16", "fp32"):
            yield Case(
                "bert", "large" if size == "full" else "tiny",
                partial(Bert, hidden, layers, heads, vocabulary, shapes[-1][0]),
                partial(text, vocabulary, batch, length), batch, dtype, length,
                # Weights, gradients and two moments, in FP32; 17 arrays of the hidden size a token and layer, most of
                # them kept in FP32 without mixed precision; the logits of the masked tokens.
                16 * (vocabulary * hidden + 12 * layers * hidden**2)
                + 4 * 20 * layers * hidden * batch * length + 16 * vocabulary * batch * length // 6,
                int((length, batch) == shapes[0]),
            )  # fmt: skip


def _small(size: str) -> Iterator[Case]:
    full = size == "full"
    sgd = partial(_sgd, lr=1e-3)
    for batch in (64, 256, 1024, 4096) if full else (2, 4):
        traced = 3 if batch in (2, 256) else 0
        yield Case("lenet", "mnist", LeNet, partial(_digits, batch), batch, traced=traced, optimizer=sgd)
    tables, rows, width, bag = (16, 500_000, 64, 20) if full else (2, 50, 4, 3)
    bottom, top = ((13, 512, 256), (512, 256)) if full else ((3, 4), (4,))
    for batch in (512, 2048, 8192) if full else (4,):
        yield Case(
            "dlrm", f"{tables}x{rows}x{width}", partial(Recommender, tables, rows, width, bottom, top),
            partial(clicks, (tables, rows, bag), bottom[0], batch), batch, traced=2 if batch in (4, 2048) else 0,
            need_bytes=4 * tables * rows * width + 4 * 6 * tables * batch * width * bag, optimizer=sgd,
        )  # fmt: skip


def _sgd(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def text(vocabulary: int, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return tokens, segments, and 15 % of the places, of which each sequence has the same number."""
    tokens = torch.randint(vocabulary, (batch, length), generator=generator)
    segments = (torch.arange(length) >= length // 2).long().expand(batch, length)
    each = max(1, round(0.15 * length))
    places = [torch.randperm(length, generator=generator)[:each] + row * length for row in range(batch)]
    return tokens, segments, torch.cat(places)


def _digits(batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    images = torch.rand((batch, 1, 28, 28), generator=generator)
    return images, torch.randint(10, (batch,), generator=generator)


def clicks(sizes: tuple[int, int, int], numbers: int, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return numbers, categories (drawn evenly: no row is hot), and clicks."""
    tables, rows, bag = sizes
    categories = torch.randint(rows, (tables, batch, bag), generator=generator)
    clicks = torch.randint(2, (batch,), generator=generator).float()
    return torch.randn((batch, numbers), generator=generator), categories, clicks


def _warm(facts: Mapping[str, Any], case: Case, device: str) -> Callable[[object], None]:
    """Return what trains the batch once more, warm."""
    require(facts.get("memory_bytes"), case.need_bytes, case.name)
    made: Trainer = trainer(case.make, device, case.dtype, optimizer=case.optimizer)
    inputs = tuple(one.to(device) for one in case.inputs(torch.Generator().manual_seed(_SEED)))

    def run(_: object = None) -> None:
        made.step(lambda: made.model.loss(*inputs))

    for _ in range(_WARM):
        run()
    return run


def _timed(facts: Mapping[str, Any], case: Case, machine: Machine, _files: Path) -> Tables:
    with scratch(machine.device, _SEED):
        run = _warm(facts, case, machine.device)
        times = laps(machine.device, run, _REPETITIONS)
        del run
    return {"steps": _rows(case, times)}


def _traced(facts: Mapping[str, Any], case: Case, machine: Machine, files: Path) -> Tables:
    """Trace iterations; time the same without a profiler before, in the process that is traced."""
    with scratch(machine.device, _SEED):
        run = _warm(facts, case, machine.device)
        times = laps(machine.device, run, _REPETITIONS)
        record(machine.device, files, case.name,
               [Marked(i, run, case.sequence_length, case.batch) for i in range(case.traced)])  # fmt: skip
        del run
    return {"steps": _rows(replace(case, configuration=f"{case.configuration}-before-trace"), times)}


def _rows(case: Case, times: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "model": case.model, "configuration": case.configuration, "sequence_length": case.sequence_length,
            "batch": case.batch, "dtype": case.dtype, "repetition": i, "duration_ns": duration,
        }
        for i, duration in enumerate(times)
    ]  # fmt: skip
