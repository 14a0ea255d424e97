"""Train three models for whole epochs on the CPU, on several configurations, and log every iteration.

    python benchmarks/selection/record_epochs.py [--output datasets/measured] [--model speech] ...

The project ships what this writes: `datasets/measured/epochs/MODEL/CONFIGURATION-ORDER.csv`, on which
`seqpoint validate selection` scores the selectors. Lengths are drawn once a model, sorted and cut into batches; the
order `sorted` trains them from short to long (as the first epoch of DeepSpeech2 does), `shuffled` in one random
order, the same on every configuration. No profiler runs. Before an epoch, a batch of every length is trained
unrecorded, so that no iteration pays for what a new shape costs once. The epoch is trained three times, and the
duration of an iteration is the median of its three: single ones differ by 5 to 10 % on a virtual machine. The
configuration `again` is `base` once more: its difference from `base` is the noise floor of the machine.

Close other programs first. Each epoch is written when it is complete; those that are there already are kept, so an
interrupted run goes on.
"""

import csv
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np
import torch
from models import MODELS
from torch import nn

OUTPUT = Path(__file__).parents[2] / "datasets" / "measured" / "epochs"
ORDERS = ("sorted", "shuffled")
REPEATS = 3


@dataclass(frozen=True)
class Job:
    """What is trained: a model, how many iterations of how many sequences, and how long these are."""

    model: str
    hidden: int
    iterations: int
    batch: int
    lengths: Callable[[np.random.Generator, int], np.ndarray]

    def epoch(self, order: str) -> np.ndarray:
        """Return the padded length of every iteration, a multiple of 4."""
        rng = np.random.default_rng(20)
        each = np.sort(self.lengths(rng, self.iterations * self.batch))
        padded = -(-each[self.batch - 1 :: self.batch] // 4) * 4
        return padded if order == "sorted" else rng.permutation(padded)


def read_speech(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw lengths as sentences read aloud have: most near the longest, a tail of short ones."""
    long = rng.random(count) < 0.7
    drawn = np.where(long, rng.normal(58, 6, count), rng.uniform(10, 56, count))
    return np.clip(np.rint(drawn), 8, 96).astype(np.int64)


def sentences(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw lengths as sentences of talks have: log-normal."""
    return np.clip(np.rint(rng.lognormal(np.log(20), 0.55, count)), 4, 100).astype(np.int64)


def answers(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw log-normal lengths with the spread of the answers of a language model (0.86), a third as long."""
    return np.clip(np.rint(rng.lognormal(np.log(43), 0.86, count)), 4, 256).astype(np.int64)


JOBS = (
    Job("translation", 96, 2083, 8, sentences),
    Job("speech", 48, 446, 8, read_speech),
    Job("transformer", 96, 800, 8, answers),
)


@dataclass(frozen=True)
class Configuration:
    """How it is trained.

    Parameters
    ----------
    name : str
    threads : int
        Of one operator.
    hidden : float
        Times the job's hidden size.
    bfloat16 : bool
        Automatic mixed precision.
    shared : bool
        Whether another process copies large arrays at the same time, so that little of the cache is left.
    """

    name: str
    threads: int = 1
    hidden: float = 1.0
    bfloat16: bool = False
    shared: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Train so, for a while."""
        torch.set_num_threads(self.threads)
        mixed: AbstractContextManager[object] = nullcontext()
        if self.bfloat16:
            mixed = torch.autocast("cpu", torch.bfloat16)
        with _neighbour() if self.shared else nullcontext(), mixed:
            yield


@contextmanager
def _neighbour() -> Iterator[None]:
    """Run a process that copies 64 MiB to and fro."""
    code = "import numpy as np\na, b = np.ones((2, 1 << 23))\nwhile True: b[:] = a; a[:] = b"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(1)
        yield
    finally:
        process.kill()
        process.wait()


CONFIGURATIONS = (
    Configuration("base"),
    Configuration("again"),
    Configuration("threads2", threads=2),
    Configuration("half", hidden=0.5),
    Configuration("wide", hidden=1.5),
    Configuration("bfloat16", bfloat16=True),
    Configuration("shared_cache", shared=True),
)


def durations(job: Job, configuration: Configuration, lengths: np.ndarray) -> np.ndarray:
    """Train the epoch `REPEATS` times and return the median duration of each iteration in ns."""
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(6)
    with configuration.applied():
        model = MODELS[job.model](int(job.hidden * configuration.hidden) // 8 * 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for length in np.unique(lengths).tolist():
            _train(model, optimizer, (length, job.batch), generator)
        found = [
            [_train(model, optimizer, (length, job.batch), generator) for length in lengths.tolist()]
            for _ in range(REPEATS)
        ]
    return np.median(found, axis=0).astype(np.int64)


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, int], generator: torch.Generator
) -> int:
    begin = time.perf_counter_ns()
    optimizer.zero_grad()
    model.loss(*shape, generator).backward()
    optimizer.step()
    return time.perf_counter_ns() - begin


def write_log(path: Path, lengths: np.ndarray, batch: int, found: np.ndarray) -> None:
    """Write one epoch, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["iteration", "sequence_length", "batch", "duration_ns"])
        rows = zip(lengths.tolist(), found.tolist(), strict=True)
        writer.writerows((i, length, batch, duration) for i, (length, duration) in enumerate(rows))
    new.replace(path)


def machine() -> dict[str, str]:
    """Describe the machine without its name."""
    processor = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name[^:]*:(.+)$", processor, re.MULTILINE)
    return {
        "CPU": model.group(1).strip() if model else platform.machine(),
        "Virtual machine": "yes" if re.search(r"\bhypervisor\b", processor) else "no",
        "Cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "torch": f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}",
        "Date": datetime.now(UTC).date().isoformat(),
        "Load average (1 minute) at the start": f"{os.getloadavg()[0]:.2f}",
    }


def write_readme(folder: Path, described: dict[str, str]) -> None:
    """Say what the logs are and where they come from."""
    jobs = "\n".join(
        f"| {j.model} | {j.hidden} | {j.iterations} | {j.batch} | {min(j.epoch('sorted'))}-{max(j.epoch('sorted'))} |"
        for j in JOBS
    )
    rows = "\n".join(f"| {key} | {value} |" for key, value in described.items())
    (folder / "README.md").write_text(
        "# Whole epochs on a CPU, every iteration measured\n\n"
        "Recorded by this project with `python benchmarks/selection/record_epochs.py`, which says how. One CSV a\n"
        "configuration and order; durations are wall time of a training step, no profiler, the median of three\n"
        "epochs.\n\n"
        "| model | hidden | iterations | batch | padded lengths |\n|---|---|---|---|---|\n"
        f"{jobs}\n\n| machine | |\n|---|---|\n{rows}\n"
    )


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, show_default=False)
@click.option("--model", "models", multiple=True, type=click.Choice([job.model for job in JOBS]))
@click.option("--iterations", type=click.IntRange(1), help="Instead of a whole epoch, for a trial.")
def main(output: Path, models: tuple[str, ...], iterations: int | None) -> None:
    """Train and log."""
    output.mkdir(parents=True, exist_ok=True)
    described = machine()
    jobs = [job for job in JOBS if not models or job.model in models]
    for job in [replace(job, iterations=iterations or job.iterations) for job in jobs]:
        for order in ORDERS:
            lengths = job.epoch(order)
            for configuration in CONFIGURATIONS:
                path = output / job.model / f"{configuration.name}-{order}.csv"
                if path.exists():
                    continue
                found = durations(job, configuration, lengths)
                write_log(path, lengths, job.batch, found)
                print(f"{path.parent.name}/{path.name}: {found.sum() / 1e9:.2f} s", file=sys.stderr)
    write_readme(output, described)


if __name__ == "__main__":
    main()
