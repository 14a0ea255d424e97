"""Overhead of `IterationLog` in a small PyTorch training loop, with and without it in turns.

    python benchmarks/selection/logger_overhead.py --help

A model is trained in blocks of the same batches, with the logger and without it. The two blocks of a pair follow each
other in random order, so that a drift of the machine falls on both. A block is as long as the time between two writes
of the logger, so that each holds one. The ratio is the median over pairs, as other programs disturb single blocks; its
interval is that of order statistics. The cost of a call between training steps includes cold caches. The cost of a call
alone is the difference of empty loops with and without the logger. Both include the writing. Needs torch.
"""

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import click
from scipy.stats import binom

from profilers.record import IterationLog

CALLS = 20_000


def loop(width: int) -> Callable[[int], None]:
    """Return a function that trains a fresh model by a batch of sequences of a length."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = {length: torch.randn(4, length, width) for length in range(8, 33)}

    def train(length: int) -> None:
        optimizer.zero_grad()
        model(batches[length]).square().mean().backward()
        optimizer.step()

    return train


def plain(train: Callable[[int], None], lengths: list[int]) -> int:
    """Return the ns that a block takes."""
    start_ns = time.perf_counter_ns()
    for length in lengths:
        train(length)
    return time.perf_counter_ns() - start_ns


def logged(train: Callable[[int], None], lengths: list[int], log: IterationLog) -> int:
    """Return the ns that a block takes with the logger."""
    start_ns = time.perf_counter_ns()
    for length in lengths:
        with log.iteration(sequence_length=length, batch=4):
            train(length)
    return time.perf_counter_ns() - start_ns


def pairs(train: Callable[[int], None], lengths: list[int], count: int, log: IterationLog) -> list[tuple[int, int]]:
    """Return (ns without, ns with) of each pair of blocks."""
    rng = random.Random(0)
    plain(train, lengths)
    blocks = []
    for _ in range(count):
        if rng.random() < 0.5:
            without = plain(train, lengths)
            blocks.append((without, logged(train, lengths, log)))
        else:
            with_log = logged(train, lengths, log)
            blocks.append((plain(train, lengths), with_log))
    return blocks


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, free of any assumption on the distribution."""
    ordered = sorted(values)
    below = int(binom.ppf(0.025, len(ordered), 0.5))
    return median(ordered), ordered[max(below - 1, 0)], ordered[min(len(ordered) - below, len(ordered) - 1)]


def between(train: Callable[[int], None], lengths: list[int], log: IterationLog) -> float:
    """Return the ns of an empty logged iteration after a training step, which leaves the caches cold."""
    total_ns = 0
    for length in lengths:
        train(length)
        start_ns = time.perf_counter_ns()
        with log.iteration(sequence_length=length, batch=4):
            pass
        total_ns += time.perf_counter_ns() - start_ns
    return total_ns / len(lengths)


def nothing(length: int) -> None:
    """Train nothing."""


def call_cost(folder: Path, name: str, rounds: int) -> list[float]:
    """Return the ns of one logged iteration, by round."""
    lengths = [37] * CALLS
    costs = []
    for index in range(rounds):
        with IterationLog(folder / f"{index}-{name}") as log:
            costs.append((logged(nothing, lengths, log) - plain(nothing, lengths)) / CALLS)
    return costs


@click.command(context_settings={"show_default": True})
@click.option("--pairs", "count", default=150, help="Number of pairs of blocks.")
@click.option("--block", default=200, help="Number of iterations in a block.")
@click.option("--width", default=256, help="Width of the model's layers.")
def main(count: int, block: int, width: int) -> None:
    """Print the ratio of times with and without the logger, and the cost of a call."""
    import torch

    torch.set_num_threads(1)
    rng = random.Random(1)
    lengths = [rng.randint(8, 32) for _ in range(block)]
    with tempfile.TemporaryDirectory() as folder:
        with IterationLog(Path(folder) / "log.csv") as log:
            train = loop(width)
            blocks = pairs(train, lengths, count, log)
            inside = interval([between(train, lengths, log) for _ in range(max(count // 3, 10))])
        alone = {name: call_cost(Path(folder), name, 15) for name in ("log.csv", "log.parquet")}
    per_iteration = median(without for without, _ in blocks) / block
    ratio, low, high = interval([logged_ns / plain_ns for plain_ns, logged_ns in blocks])
    print(f"iteration without the logger: {per_iteration / 1e6:.3f} ms (median of {count} blocks of {block})")
    print(f"with over without: {ratio:.4f} [{low:.4f}, {high:.4f}] (95 %)")
    print("one call between training steps: {:.2f} us [{:.2f}, {:.2f}] (95 %)".format(*(v / 1e3 for v in inside)))
    for name, costs in alone.items():
        print(
            f"one call alone, {name}: median {median(costs) / 1e3:.2f} us, best {min(costs) / 1e3:.2f}, "
            f"worst {max(costs) / 1e3:.2f}"
        )
    print(f"between steps that is {100 * inside[0] / per_iteration:.2f} % of such an iteration")


if __name__ == "__main__":
    main()
