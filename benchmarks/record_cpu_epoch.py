"""Record one training epoch of a variable-length model on the CPU: Kineto traces and plain logs.

The project ships what this writes (`datasets/samples/cpu_epoch/`). The model is an LSTM sequence classifier
and the lengths follow a clipped log-normal, so that iterations of one epoch differ in work by an order of
magnitude, which is what a selection of representative iterations has to cope with. Each thread count is one
configuration; all train on the same batches in the same order, so that a selection made on one configuration
can be checked on another.

Per configuration: one epoch unrecorded (it fills the primitive caches for every shape), one epoch timed
without a profiler, one epoch under `torch.profiler`.

Run it with `python benchmarks/record_cpu_epoch.py --help`; it needs torch (`pip install 'seqpoint[torch]'`).
"""

import csv
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

VOCABULARY = 1000
CLASSES = 8
EMBEDDING = 128
HIDDEN = 256
BATCHES_PER_BUCKET = 8
PROFILER_WARMUP_STEPS = 2
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)*[\w.+@-]+")
#: Level of the compression: the highest whose window every reader accepts.
_ZSTD_LEVEL = 19
DEFAULT_OUTPUT = Path(__file__).parents[1] / "datasets" / "samples" / "cpu_epoch"


@dataclass(frozen=True)
class Lengths:
    """A log-normal distribution of sequence lengths, rounded and clipped.

    Parameters
    ----------
    median : float
        Median length, tokens.
    sigma : float
        Standard deviation of the logarithm.
    shortest, longest : int
        Lengths outside are clipped to these, tokens.
    """

    median: float = 30.0
    sigma: float = 0.6
    shortest: int = 8
    longest: int = 120

    def sample(self, count: int, seed: int) -> np.ndarray:
        """Return `count` lengths, int64 tokens; the same seed gives the same lengths."""
        draws = np.random.default_rng(seed).lognormal(np.log(self.median), self.sigma, count)
        return np.clip(np.rint(draws), self.shortest, self.longest).astype(np.int64)


@dataclass(frozen=True)
class Batch:
    """Token identifiers padded with 0 to the longest sequence, (batch, length), and one class a sequence."""

    tokens: np.ndarray
    classes: np.ndarray

    @property
    def size(self) -> int:
        """Sequences in the batch."""
        return int(self.tokens.shape[0])

    @property
    def sequence_length(self) -> int:
        """Padded length, tokens."""
        return int(self.tokens.shape[1])


@dataclass(frozen=True)
class Epoch:
    """What is trained: iterations of one batch size, all from one seed."""

    iterations: int
    batch: int
    seed: int

    def batches(self) -> list[Batch]:
        """Return the padded batches in training order: sorted inside buckets, then shuffled."""
        rng = np.random.default_rng(self.seed)
        lengths = Lengths().sample(self.iterations * self.batch, self.seed)
        groups = list(_bucketed(lengths, self.batch, self.batch * BATCHES_PER_BUCKET))
        order = rng.permutation(len(groups))
        return [_padded(groups[index], rng) for index in order]


@dataclass(frozen=True)
class Iteration:
    """One line of the plain log; durations in ns."""

    iteration: int
    sequence_length: int
    batch: int
    duration_ns: int


def _bucketed(lengths: np.ndarray, batch: int, bucket: int) -> Iterator[np.ndarray]:
    for start in range(0, len(lengths), bucket):
        pool = np.sort(lengths[start : start + bucket])
        yield from (pool[at : at + batch] for at in range(0, len(pool), batch))


def _padded(lengths: np.ndarray, rng: np.random.Generator) -> Batch:
    """Draw sequences whose tokens lean to one residue per class, so that there is something to learn."""
    classes = rng.integers(0, CLASSES, len(lengths))
    tokens = rng.integers(1, VOCABULARY, (len(lengths), int(lengths.max())))
    leaning = rng.random(tokens.shape) < 0.3
    tokens = np.where(leaning, tokens // CLASSES * CLASSES + classes[:, None], tokens) % VOCABULARY
    tokens[np.arange(tokens.shape[1]) >= lengths[:, None]] = 0
    return Batch(tokens=tokens, classes=classes)


def _trainer(seed: int) -> Callable[[Batch], float]:
    """Return a function that trains a fresh model by one batch and gives the loss."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    embedding = nn.Embedding(VOCABULARY, EMBEDDING, padding_idx=0)
    recurrent = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True, bidirectional=True)
    classifier = nn.Linear(2 * HIDDEN, CLASSES)
    parameters = [*embedding.parameters(), *recurrent.parameters(), *classifier.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def train(batch: Batch) -> float:
        optimizer.zero_grad()
        states, _ = recurrent(embedding(torch.from_numpy(batch.tokens)))
        loss = nn.functional.cross_entropy(classifier(states.mean(dim=1)), torch.from_numpy(batch.classes))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return train


def _run(epoch: Epoch, *, annotated: bool = False, after: Callable[[], None] | None = None) -> list[Iteration]:
    """Train one epoch of a fresh model and return the wall time of each iteration."""
    train = _trainer(epoch.seed)
    log = []
    for number, batch in enumerate(epoch.batches()):
        start_ns = time.perf_counter_ns()
        with _annotation(batch) if annotated else nullcontext():
            train(batch)
        duration_ns = time.perf_counter_ns() - start_ns
        log.append(Iteration(number, batch.sequence_length, batch.size, duration_ns))
        if after is not None:
            after()
    return log


def _annotation(batch: Batch) -> AbstractContextManager[Any]:
    import torch

    name = f"iteration sequence_length={batch.sequence_length} batch={batch.size}"
    return torch.profiler.record_function(name)


def _profile(epoch: Epoch, path: Path) -> None:
    """Train one epoch under the profiler and write its scrubbed Kineto JSON, compressed."""
    import torch

    schedule = torch.profiler.schedule(wait=0, warmup=PROFILER_WARMUP_STEPS, active=epoch.iterations, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule,
        on_trace_ready=lambda profiler: _export(profiler, path),
        record_shapes=True,
    ) as profiler:
        train = _trainer(epoch.seed)
        for batch in epoch.batches()[:PROFILER_WARMUP_STEPS]:
            train(batch)
            profiler.step()
        _run(epoch, annotated=True, after=profiler.step)


def _export(profiler: Any, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        trace = json.loads(raw.read_text())
    trace.pop("host_name", None)
    trace["traceName"] = path.name.removesuffix(".zst")
    text = json.dumps(scrub(trace), separators=(",", ":"))
    path.write_bytes(pa.Codec("zstd", _ZSTD_LEVEL).compress(text.encode(), asbytes=True))


def scrub(value: Any) -> Any:
    """Replace every absolute path inside a JSON value by its last part.

    Examples
    --------
    >>> scrub({"name": "run /home/me/train.py", "Input Dims": [[2, 3]]})
    {'name': 'run train.py', 'Input Dims': [[2, 3]]}
    """
    if isinstance(value, str):
        return ABSOLUTE_PATH.sub(lambda found: found.group().rsplit("/", 1)[1], value) if "/" in value else value
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {key: scrub(item) for key, item in value.items()}
    return value


def _write_log(log: list[Iteration], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["iteration", "sequence_length", "batch", "duration_ns"])
        writer.writerows((row.iteration, row.sequence_length, row.batch, row.duration_ns) for row in log)


def _first_match(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE) if Path(path).exists() else None
    return found.group(1).strip() if found else "unknown"


def _machine() -> dict[str, str]:
    """Describe the machine without its name."""
    import torch

    memory_kib = _first_match("/proc/meminfo", r"^MemTotal:\s+(\d+) kB")
    family = _first_match("/proc/cpuinfo", r"^cpu family\s*:\s*(.+)$")
    model = _first_match("/proc/cpuinfo", r"^model\s*:\s*(.+)$")
    virtual = _first_match("/proc/cpuinfo", r"^flags\s*:.*\s(hypervisor)\b") != "unknown"
    return {
        "CPU": f"{_first_match('/proc/cpuinfo', r'^model name[^:]*:(.+)$')}, family {family}, model {model}",
        "Virtual machine": "yes" if virtual else "no",
        "Cores": str(os.cpu_count()),
        "Memory": f"{int(memory_kib) / 2**20:.1f} GiB" if memory_kib.isdigit() else memory_kib,
        "Operating system": _first_match("/etc/os-release", r'^PRETTY_NAME="(.+)"$'),
        "Python": platform.python_version(),
        "torch": f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}",
        "numpy": np.__version__,
    }


README = """# One training epoch on a CPU

Recorded by this project on {date} with

    {command}

An LSTM sequence classifier (embedding {embedding}, one bidirectional layer of {hidden}, linear, fused Adam)
on synthetic sequences: lengths are log-normal (median {lengths.median:g}, sigma {lengths.sigma:g}, clipped to
{lengths.shortest}-{lengths.longest} tokens), sorted inside buckets of {bucket} batches, padded per batch, the
batches shuffled. Seed {epoch.seed}, batch {epoch.batch}, {epoch.iterations} iterations, padded lengths
{shortest}-{longest}. Every configuration trains on the same batches in the same order; each ran one
unrecorded epoch first, so that no iteration pays for the creation of a primitive for a new shape.

| file | what |
|---|---|
{files}

In a trace, iteration i of the log is `ProfilerStep#(i + {warmup})`; inside it is an annotation
`iteration sequence_length=L batch=B`, and shapes are recorded. The log and the trace of a configuration are
two epochs: the profiler costs time, and the machine is never quite idle, so their durations differ. Absolute
paths and the host name were removed from the traces and `traceName` is the file's name; no event was changed.
The recording is the project's own and under its licence.

| total of the log | ms |
|---|---|
{totals}

| machine | |
|---|---|
{machine}
| Load average (1 minute) before the recording | {load:.2f} |
"""


def _write_readme(output: Path, epoch: Epoch, logs: dict[int, list[Iteration]], load: float) -> None:
    lengths = [row.sequence_length for log in logs.values() for row in log]
    threads = " ".join(f"--threads {count}" for count in logs)
    text = README.format(
        date=datetime.now(UTC).date().isoformat(),
        command="python benchmarks/record_cpu_epoch.py "
        f"--iterations {epoch.iterations} --batch {epoch.batch} --seed {epoch.seed} {threads}",
        embedding=EMBEDDING,
        hidden=HIDDEN,
        lengths=Lengths(),
        bucket=BATCHES_PER_BUCKET,
        epoch=epoch,
        shortest=min(lengths),
        longest=max(lengths),
        warmup=PROFILER_WARMUP_STEPS,
        files="\n".join(_file_rows(logs)),
        totals="\n".join(f"| threads {n} | {sum(r.duration_ns for r in log) / 1e6:.1f} |" for n, log in logs.items()),
        machine="\n".join(f"| {key} | {value} |" for key, value in _machine().items()),
        load=load,
    )
    (output / "README.md").write_text(text)


def _file_rows(logs: dict[int, list[Iteration]]) -> Iterator[str]:
    for count in logs:
        yield f"| {trace_name(count)} | PyTorch profiler, Kineto JSON, intra-op threads: {count} |"
        yield f"| log_threads{count}.csv | iteration wall times, no profiler, intra-op threads: {count} |"


def trace_name(threads: int) -> str:
    """Return the file name of a configuration's trace."""
    return f"epoch_threads{threads}.pt.trace.json.zst"


@click.command(context_settings={"show_default": True})
@click.option("--output", type=click.Path(path_type=Path), default=DEFAULT_OUTPUT, show_default=False,
              help="Folder to write into.  [default: datasets/samples/cpu_epoch]")  # fmt: skip
@click.option("--iterations", type=click.IntRange(min=1), default=112, help="Iterations of the epoch.")
@click.option("--batch", type=click.IntRange(min=1), default=16, help="Sequences in a batch.")
@click.option("--seed", type=int, default=7, help="Seed of lengths, data, order and weights.")
@click.option("--threads", type=click.IntRange(min=1), multiple=True, default=(1, 2),
              help="Intra-op threads; repeat for one configuration each.")  # fmt: skip
def main(output: Path, iterations: int, batch: int, seed: int, threads: tuple[int, ...]) -> None:
    """Train a variable-length model for one epoch on the CPU and record it.

    Writes a Kineto trace and a plain log for each number of threads, and a README that says on which machine.
    Close other programs first: a busy machine shows in the durations.
    """
    try:
        import torch
    except ImportError as error:
        raise click.ClickException("torch is not installed; run: pip install 'seqpoint[torch]'") from error

    epoch = Epoch(iterations=iterations, batch=batch, seed=seed)
    output.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    logs: dict[int, list[Iteration]] = {}
    for count in threads:
        torch.set_num_threads(count)
        click.echo(f"threads {count}: warming up, then one epoch for the log, one for the trace", err=True)
        _run(epoch)
        logs[count] = _run(epoch)
        _write_log(logs[count], output / f"log_threads{count}.csv")
        _profile(epoch, output / trace_name(count))
    _write_readme(output, epoch, logs, load)
    click.echo(f"wrote {output}", err=True)


if __name__ == "__main__":
    main()
