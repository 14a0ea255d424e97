"""Train three models for whole epochs on the CPU, on several configurations, and log every iteration.

    python benchmarks/selection/record_epochs.py [--output datasets/measured/epochs] [--model speech] ...

The project ships what this writes: `datasets/measured/epochs/MODEL/CONFIGURATION-ORDER.parquet`, on which
`seqpoint validate selection` scores the selectors. Lengths are drawn once a model, sorted and cut into batches; the
order `sorted` trains them from short to long (as the first epoch of DeepSpeech2 does), `shuffled` in one random
order, the same on every configuration. No profiler runs. Before an epoch, a batch of every length is trained
unrecorded, so that no iteration pays for what a new shape costs once.

Single durations differ by 10 to 20 % on a shared virtual machine, in bursts of a tenth of a second and over minutes,
with the clock and with what others do. So a fixed piece of work (`Reference`, about 0.9 ms) is timed before every
iteration and after the last, and a duration is given at the pace of a machine whose reference takes `REFERENCE_NS`:
wall time times `REFERENCE_NS` over the mean of the references before and after. That halves the scatter (0.16 to 0.09
of the mean where the same iteration is repeated). The epoch is trained several times, the configurations taking turns,
and `duration_ns` is the median of the runs. The wall times themselves are in the log too, as `run_0_ns` and on, with
`reference_0_ns` and on. The configuration `again` is `base` once more: its difference is the noise floor.

Close other programs first. A log is written anew after each run; an interrupted recording goes on with the next one.
"""

import gc
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from models import MODELS
from torch import nn

OUTPUT = Path(__file__).parents[2] / "datasets" / "measured" / "epochs"
ORDERS = ("sorted", "shuffled")
#: Times are given as if the reference took this long, which is what it takes when the machine is left alone.
REFERENCE_NS = 900_000


@dataclass(frozen=True)
class Job:
    """Training job of a model: its hidden size, number of iterations, batch size, and distribution of lengths."""

    model: str
    hidden: int
    iterations: int
    batch: int
    lengths: Callable[[np.random.Generator, int], np.ndarray]

    def epoch(self, order: str) -> np.ndarray:
        """Return the padded length of every iteration, a multiple of 4."""
        rng = np.random.default_rng(20)
        lengths = np.sort(self.lengths(rng, self.iterations * self.batch))
        padded = -(-lengths[self.batch - 1 :: self.batch] // 4) * 4
        return padded if order == "sorted" else rng.permutation(padded)


def read_speech(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw lengths of sentences read aloud: most near the longest, with a tail of short ones."""
    long = rng.random(count) < 0.7
    drawn = np.where(long, rng.normal(30, 4, count), rng.uniform(8, 28, count))
    return np.clip(np.rint(drawn), 8, 48).astype(np.int64)


def sentences(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw lengths of sentences of talks: log-normal."""
    return np.clip(np.rint(rng.lognormal(np.log(20), 0.55, count)), 4, 100).astype(np.int64)


def answers(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw log-normal lengths with the spread of the answers of a language model (0.86), a quarter as long."""
    return np.clip(np.rint(rng.lognormal(np.log(32), 0.86, count)), 4, 192).astype(np.int64)


JOBS = (
    Job("translation", 64, 4166, 8, sentences),
    Job("speech", 48, 1338, 8, read_speech),
    Job("transformer", 64, 2400, 8, answers),
)


@dataclass(frozen=True)
class Configuration:
    """Configuration of a training job.

    Parameters
    ----------
    name : str
        Name of the configuration.
    threads : int
        Number of threads of an operator.
    hidden : float
        Factor on the job's hidden size.
    bfloat16 : bool
        Whether to use automatic mixed precision.
    """

    name: str
    threads: int = 1
    hidden: float = 1.0
    bfloat16: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the configuration within the context."""
        torch.set_num_threads(self.threads)
        mixed: AbstractContextManager[object] = nullcontext()
        if self.bfloat16:
            mixed = torch.autocast("cpu", torch.bfloat16)
        with mixed:
            yield


CONFIGURATIONS = (
    Configuration("base"),
    Configuration("again"),
    Configuration("threads2", threads=2),
    Configuration("half", hidden=0.5),
    Configuration("wide", hidden=1.5),
    Configuration("bfloat16", bfloat16=True),
)


@dataclass(frozen=True)
class Run:
    """Wall times of an epoch in ns: of each iteration, and of the reference before each and after the last."""

    wall: np.ndarray
    reference: np.ndarray

    @property
    def paced(self) -> np.ndarray:
        """Durations of the iterations, scaled to the pace of the reference."""
        reference = (self.reference[:-1] + self.reference[1:]) / 2
        return self.wall * REFERENCE_NS / reference


class Reference:
    """Fixed reference computation: small products, a recurrent layer with its gradient, and plain Python."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.matrix = torch.randn(96, 96, generator=generator)
        self.layer = nn.LSTM(32, 32, batch_first=True)
        self.batch = torch.randn(4, 6, 32, generator=generator)

    def time(self) -> int:
        """Run the computation, and return its time in ns."""
        with torch.autocast("cpu", enabled=False):
            begin = time.perf_counter_ns()
            for _ in range(12):
                torch.mm(self.matrix, self.matrix)
            self.layer(self.batch)[0].sum().backward()
            sum(range(12_000))
            return time.perf_counter_ns() - begin


def train_epoch(job: Job, configuration: Configuration, lengths: np.ndarray) -> Run:
    """Train the epoch once."""
    torch.manual_seed(5)
    torch.set_flush_denormal(True)
    generator = torch.Generator().manual_seed(6)
    with configuration.applied():
        model = MODELS[job.model](int(job.hidden * configuration.hidden) // 8 * 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        reference = Reference()
        for length in np.unique(lengths).tolist():
            reference.time()
            _train(model, optimizer, (length, job.batch), generator)
        gc.collect()
        gc.disable()
        wall, references = [], [reference.time()]
        for length in lengths.tolist():
            wall.append(_train(model, optimizer, (length, job.batch), generator))
            references.append(reference.time())
        gc.enable()
    return Run(np.array(wall, dtype=np.int64), np.array(references, dtype=np.int64))


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, int], generator: torch.Generator
) -> int:
    begin = time.perf_counter_ns()
    optimizer.zero_grad()
    model.loss(*shape, generator).backward()
    optimizer.step()
    return time.perf_counter_ns() - begin


def read_runs(path: Path) -> list[Run]:
    """Return the runs that a log holds; none if there is no log."""
    if not path.exists():
        return []
    table = pq.read_table(path)
    count = sum(name.startswith("run_") for name in table.column_names)
    last = json.loads((table.schema.metadata or {}).get(b"last_reference_ns", b"[]"))
    return [
        Run(table[f"run_{i}_ns"].to_numpy(), np.append(table[f"reference_{i}_ns"].to_numpy(), last[i]))
        for i in range(count)
    ]


def write_log(path: Path, lengths: np.ndarray, batch: int, runs: list[Run]) -> None:
    """Write the log of an epoch under another name, and rename it when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "iteration": np.arange(len(lengths), dtype=np.int32),
        "sequence_length": lengths.astype(np.int32),
        "batch": np.full(len(lengths), batch, dtype=np.int32),
        "duration_ns": np.median([run.paced for run in runs], axis=0).astype(np.int64),
    }
    for i, run in enumerate(runs):
        columns |= {f"run_{i}_ns": run.wall, f"reference_{i}_ns": run.reference[:-1]}
    last = json.dumps([int(run.reference[-1]) for run in runs])
    new = path.with_suffix(".new")
    table = pa.table(columns).replace_schema_metadata({"last_reference_ns": last})
    pq.write_table(table, new, compression="zstd")
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
    """Write a README on the logs and their origin."""
    jobs = "\n".join(
        f"| {j.model} | {j.hidden} | {j.iterations} | {j.batch} | {min(j.epoch('sorted'))}-{max(j.epoch('sorted'))} |"
        for j in JOBS
    )
    rows = "\n".join(f"| {key} | {value} |" for key, value in described.items())
    (folder / "README.md").write_text(
        "# Whole epochs on a CPU, every iteration measured\n\n"
        "Recorded by this project with `python benchmarks/selection/record_epochs.py`, which says how. One log\n"
        "a configuration and order. `run_N_ns` is the wall time of a training step in the Nth run of the epoch,\n"
        "without a profiler, and `reference_N_ns` that of a fixed piece of work before it; `duration_ns` is the\n"
        f"median of the runs at the pace of a reference of {REFERENCE_NS} ns.\n\n"
        "| model | hidden | iterations | batch | padded lengths |\n|---|---|---|---|---|\n"
        f"{jobs}\n\n| machine | |\n|---|---|\n{rows}\n"
    )


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=OUTPUT, show_default=False)
@click.option("--model", "models", multiple=True, type=click.Choice([job.model for job in JOBS]))
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Number of runs of each epoch.")
@click.option(
    "--iterations", type=click.IntRange(1), help="Number of iterations, for a trial.  [default: a whole epoch]"
)
def main(output: Path, models: tuple[str, ...], runs: int, iterations: int | None) -> None:
    """Train each job on each configuration, and log every iteration."""
    output.mkdir(parents=True, exist_ok=True)
    described = machine()
    jobs = [job for job in JOBS if not models or job.model in models]
    jobs = [replace(job, iterations=iterations or job.iterations) for job in jobs]
    for run, job, order, configuration in product(range(runs), jobs, ORDERS, CONFIGURATIONS):
        path = output / job.model / f"{configuration.name}-{order}.parquet"
        earlier = read_runs(path)
        if len(earlier) > run:
            continue
        lengths = job.epoch(order)
        latest = train_epoch(job, configuration, lengths)
        write_log(path, lengths, job.batch, [*earlier, latest])
        print(f"run {run}: {path.parent.name}/{path.name}: {latest.wall.sum() / 1e9:.2f} s", file=sys.stderr)
    write_readme(output, described)


if __name__ == "__main__":
    main()
