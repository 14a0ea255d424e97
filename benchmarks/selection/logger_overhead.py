"""What logging costs a training loop: a real small PyTorch loop with and without `IterationLog`, interleaved.

    python benchmarks/selection/logger_overhead.py --help

One model is trained in blocks of the same batches, with the logger and without it; a pair of blocks lies close
together in time, and which comes first is shuffled, so that a drift of the machine falls on both. A block is as long
as the logger waits between two writes, so that each holds one. The ratio is the median over pairs, for other programs
disturb single blocks; its interval is that of order statistics. The cost of a call between training steps finds the
caches as training leaves them; the cost of a call alone is what a loop that logs and does nothing else takes above
the same loop without logging. Both include the writing. Needs torch.
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
    found = []
    for _ in range(count):
        if rng.random() < 0.5:
            without = plain(train, lengths)
            found.append((without, logged(train, lengths, log)))
        else:
            with_log = logged(train, lengths, log)
            found.append((plain(train, lengths), with_log))
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, free of any assumption on the distribution."""
    ordered = sorted(values)
    below = int(binom.ppf(0.025, len(ordered), 0.5))
    return median(ordered), ordered[max(below - 1, 0)], ordered[min(len(ordered) - below, len(ordered) - 1)]


def between(train: Callable[[int], None], lengths: list[int], log: IterationLog) -> float:
    """Return the ns of an empty logged iteration after each training step, whose work has emptied the caches."""
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
@click.option("--pairs", "count", default=150, help="Pairs of blocks.")
@click.option("--block", default=200, help="Iterations of a block.")
@click.option("--width", default=256, help="Of the model.")
def main(count: int, block: int, width: int) -> None:
    """Print the ratio of times with and without the logger, and the cost of a call."""
    import torch

    torch.set_num_threads(1)
    rng = random.Random(1)
    lengths = [rng.randint(8, 32) for _ in range(block)]
    with tempfile.TemporaryDirectory() as folder:
        with IterationLog(Path(folder) / "log.csv") as log:
            train = loop(width)
            found = pairs(train, lengths, count, log)
            inside = interval([between(train, lengths, log) for _ in range(max(count // 3, 10))])
        alone = {name: call_cost(Path(folder), name, 15) for name in ("log.csv", "log.parquet")}
    per_iteration = median(without for without, _ in found) / block
    ratio, low, high = interval([logged_ns / plain_ns for plain_ns, logged_ns in found])
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
