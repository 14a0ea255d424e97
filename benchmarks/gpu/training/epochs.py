"""Epochs of two models of variable length, every iteration timed; and traces of a few of the same iterations.

Lengths are drawn once a model, sorted, cut into batches and padded; the order ``sorted`` trains the batches from short
to long, ``shuffled`` in one random order, both the same under every configuration. Before an epoch every length is
trained twice untimed, the longest first: the allocator then holds blocks that fit all, and no iteration pays for what
a new shape costs once (choosing a kernel, planning attention). No profiler runs in an epoch and no garbage is
collected. Batches are slices of tokens that are on the device already. No reference is timed beside an epoch, as
`benchmarks/selection/record_epochs.py` does on a CPU: a second take of the recording tells how the times scatter.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.clock import laps, require, scratch
from benchmarks.gpu.step import Machine, Step, Tables
from benchmarks.gpu.tracing import Marked, record
from benchmarks.gpu.training.sequence import LanguageModel, Translation
from benchmarks.gpu.training.trainer import Trainer, trainer

__all__ = ["CONFIGURATIONS", "ORDERS", "Configuration", "Job", "chosen", "epoch_steps", "jobs", "trace_steps"]

ORDERS = ("sorted", "shuffled")
_SEED = 20
#: Repetitions of each traced iteration without a profiler.
_BESIDE_TRACE = 8


@dataclass(frozen=True)
class Job:
    """A model, and how many iterations of how many sequences it is trained for.

    Parameters
    ----------
    model : str
    make : callable
        From the hidden size to the model.
    hidden, vocabulary, iterations, batch : int
    lengths : tuple of float
        Median of the log-normal lengths, standard deviation of their logarithm, shortest and longest.
    multiple : int
        That batches are padded to.
    mixed : str
        Type of the mixed precision.
    """

    model: str
    make: Callable[[int], nn.Module]
    hidden: int
    vocabulary: int
    iterations: int
    batch: int
    lengths: tuple[float, float, int, int]
    multiple: int
    mixed: str

    def epoch(self, order: str) -> list[int]:
        """Return the padded length of every iteration."""
        median, spread, least, most = self.lengths
        rng = random.Random(_SEED)
        drawn = (rng.lognormvariate(math.log(median), spread) for _ in range(self.iterations * self.batch))
        each = sorted(min(max(round(one), least), most) for one in drawn)
        padded = [-(-one // self.multiple) * self.multiple for one in each[self.batch - 1 :: self.batch]]
        if order == "shuffled":
            rng.shuffle(padded)
        return padded


@dataclass(frozen=True)
class Configuration:
    """How it is trained: in mixed precision or in FP32, and with which share of the hidden size."""

    name: str
    mixed: bool = False
    hidden: float = 1.0


@dataclass(frozen=True)
class _Task:
    """What is trained, how, and the facts of what it is trained on."""

    facts: Mapping[str, Any]
    job: Job
    how: Configuration


CONFIGURATIONS = (Configuration("base"), Configuration("mixed", mixed=True), Configuration("half", hidden=0.5))

#: Guessed of an epoch at full size, with its warm-up.
_SECONDS = {"base": 8.0, "mixed": 5.0, "half": 4.0}


def jobs(size: str) -> tuple[Job, ...]:
    """Return what is trained.

    LSTMs are mixed in FP16: PyTorch's automatic precision runs cuDNN's in that alone, whatever is asked for, and then
    refuses to join it with BF16. (On a CPU there is BF16 alone: see `_dtype`.)
    """
    if size == "full":
        return (
            Job("translation", partial(Translation, layers=4, vocabulary=16384), 512, 16384, 400, 64,
                (28, 0.6, 4, 128), 8, "fp16"),
            Job("language", partial(LanguageModel, layers=6, heads=12, vocabulary=16384, longest=768), 768, 16384, 320,
                16, (96, 0.8, 16, 768), 16, "bf16"),
        )  # fmt: skip
    return (
        Job("translation", partial(Translation, layers=2, vocabulary=64), 16, 64, 12, 2, (6, 0.5, 2, 16), 4, "fp16"),
        Job("language", partial(LanguageModel, layers=1, heads=2, vocabulary=64, longest=32), 16, 64, 12, 2,
            (8, 0.7, 2, 32), 4, "bf16"),
    )  # fmt: skip


def epoch_steps(facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return a step for each epoch."""
    return [
        Step(f"e/epoch/{job.model}/{how.name}-{order}", "e", _SECONDS[how.name] if size == "full" else 1.0,
             partial(_epoch, _Task(facts, job, how), order))
        for job, order, how in product(jobs(size), ORDERS, CONFIGURATIONS)
    ]  # fmt: skip


def trace_steps(facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return a step for the traced iterations of each model, in FP32 and mixed."""
    needs = frozenset({"profiler"})
    return [
        Step(f"e/trace/{job.model}/{how.name}", "e", 3.0 if size == "full" else 1.0,
             partial(_traced, _Task(facts, job, how)), needs)
        for job, how in product(jobs(size), CONFIGURATIONS[:2])
    ]  # fmt: skip


def chosen(lengths: Sequence[int]) -> list[int]:
    """Return the iterations with a short, a median and a long length (the 5th, 50th and 95th of 100), in their order.

    Of one length the first; fewer than three where lengths are few.
    """
    ranked = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    wanted = {lengths[ranked[round(share * (len(ranked) - 1))]] for share in (0.05, 0.5, 0.95)}
    return sorted(lengths.index(length) for length in wanted)


@dataclass(frozen=True)
class _Training:
    """A trainer and its data, warm."""

    trainer: Trainer
    tokens: torch.Tensor

    def step(self, lengths: Sequence[int], i: int) -> None:
        """Train iteration `i` of an epoch."""
        batch = self.tokens[i % len(self.tokens), :, : lengths[i] + 1]
        self.trainer.step(lambda: self.trainer.model.loss(batch))

    def again(self, lengths: Sequence[int], i: int, _: int) -> None:
        """Train iteration `i` once more."""
        self.step(lengths, i)


def _training(task: _Task, device: str) -> _Training:
    job, how = task.job, task.how
    longest, hidden = max(job.epoch("sorted")), int(job.hidden * how.hidden) // 8 * 8
    # Weights, gradients and moments; the products' inputs and results, the logits and their gradients.
    need = 16 * 3 * job.vocabulary * hidden + 4 * job.batch * longest * (150 * hidden + 5 * job.vocabulary)
    require(task.facts.get("memory_bytes"), need, f"{job.model} with a hidden size of {hidden}")
    made = trainer(partial(job.make, hidden), device, _dtype(job, how, device))
    generator = torch.Generator().manual_seed(_SEED)
    tokens = torch.randint(job.vocabulary, (8, job.batch, longest + 1), generator=generator)
    return _Training(made, tokens.to(device))


def _dtype(job: Job, how: Configuration, device: str) -> str:
    if not how.mixed:
        return "fp32"
    return job.mixed if torch.device(device).type == "cuda" else "bf16"


def _warm(training: _Training, lengths: Sequence[int]) -> None:
    """Train every length, from the longest to the shortest, twice."""
    each = sorted(set(lengths), reverse=True)
    for _ in range(2):
        for i in range(len(each)):
            training.step(each, i)


def _epoch(task: _Task, order: str, machine: Machine, _files: Path) -> Tables:
    job, how = task.job, task.how
    lengths = job.epoch(order)
    with scratch(machine.device, _SEED):
        training = _training(task, machine.device)
        _warm(training, lengths)
        times = laps(machine.device, partial(training.step, lengths), len(lengths))
        del training
    return {
        "epochs": [
            {
                "model": job.model, "configuration": f"{how.name}-{order}", "iteration": i, "sequence_length": length,
                "batch": job.batch, "duration_ns": duration,
            }
            for i, (length, duration) in enumerate(zip(lengths, times, strict=True))
        ]
    }  # fmt: skip


def _traced(task: _Task, machine: Machine, files: Path) -> Tables:
    """Trace iterations of the shuffled epoch under their numbers; time the same without a profiler before."""
    job, how = task.job, task.how
    lengths = job.epoch("shuffled")
    numbers = chosen(lengths)
    rows: list[dict[str, Any]] = []
    with scratch(machine.device, _SEED):
        training = _training(task, machine.device)
        _warm(training, [lengths[i] for i in numbers])
        for i in numbers:
            times = laps(machine.device, partial(training.again, lengths, i), _BESIDE_TRACE)
            rows += [
                {
                    "model": job.model, "configuration": how.name, "sequence_length": lengths[i], "batch": job.batch,
                    "dtype": training.trainer.dtype, "repetition": repetition, "duration_ns": duration,
                }
                for repetition, duration in enumerate(times)
            ]  # fmt: skip
        marked = [Marked(i, partial(training.step, lengths, i), lengths[i], job.batch) for i in numbers]
        record(machine.device, files, f"{job.model}_{how.name}", marked)
        del training, marked
    return {"steps": rows}
