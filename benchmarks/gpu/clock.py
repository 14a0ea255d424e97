"""Times of launches and of iterations, by events on a GPU, by the host's clock on a CPU; and what a step cleans up."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

__all__ = ["MemoryNeededError", "laps", "repeated", "require", "scratch", "synchronize"]

#: Cycles of a GPU's clock a ns, at most: how long the device is held so that launches queue up behind.
_CYCLES_PER_NS, _LONGEST_HOLD = 2.2, 20_000_000


class MemoryNeededError(RuntimeError):
    """The device has not the memory that a step needs."""


def synchronize(device: str) -> None:
    """Wait for all that was launched."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def laps(device: str, run: Callable[[int], object], count: int) -> list[int]:
    """Return how long each of ``run(0)`` to ``run(count - 1)`` took, ns, one behind the other.

    On a GPU an event is recorded before the first and behind each, and nobody waits until all is launched: the host
    runs ahead as it does in a training loop, so that the times are those of the pipeline and add up to the whole. A gap
    in which the device waits for the host belongs to the iteration behind it. Waiting after each iteration instead
    would add the time to fill the pipeline to every one (most to the short ones). On a CPU each call is over when it
    returns.
    """
    if torch.device(device).type != "cuda":
        stamps = [time.perf_counter_ns()]
        for i in range(count):
            run(i)
            stamps.append(time.perf_counter_ns())
        return [max(1, after - before) for before, after in pairwise(stamps)]
    events = _events(count + 1)
    torch.cuda.synchronize(device)
    events[0].record()
    for i in range(count):
        run(i)
        events[i + 1].record()
    torch.cuda.synchronize(device)
    return _between(events)


def repeated(
    device: str, launch: Callable[[], object], repetitions: int, *, least_ns: int, most: int = 64
) -> list[float]:
    """Return how long one launch takes, ns, each the mean over so many in a row that they last `least_ns`.

    On a GPU the device is held by an idle kernel while they are launched, so that what is timed is the device and not
    how fast the host launches.

    Parameters
    ----------
    device : str
    launch : callable
        Of one operator; already warm.
    repetitions : int
    least_ns : int
    most : int
        Launches in a row; few enough for the queue of a stream, which holds a thousand.
    """
    single = min(_rows(device, launch, 1) for _ in range(2))
    count = max(1, min(most, -(-least_ns // max(1, int(single)))))
    return [_rows(device, launch, count) for _ in range(repetitions)]


def _rows(device: str, launch: Callable[[], object], count: int) -> float:
    """Time `count` launches once and return ns a launch."""
    if torch.device(device).type != "cuda":
        begin = time.perf_counter_ns()
        for _ in range(count):
            launch()
        return max(1, time.perf_counter_ns() - begin) / count
    before, after = _events(2)
    torch.cuda.synchronize(device)
    _hold(30_000 * (count + 2))
    before.record()
    for _ in range(count):
        launch()
    after.record()
    torch.cuda.synchronize(device)
    return max(1.0, before.elapsed_time(after) * 1e6) / count


def _hold(host_ns: int) -> None:
    """Keep the current stream busy for about so long, by a kernel that waits; nothing where torch has none."""
    if hasattr(torch.cuda, "_sleep"):
        torch.cuda._sleep(min(_LONGEST_HOLD, int(_CYCLES_PER_NS * host_ns)))


def _events(count: int) -> list[Any]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def _between(events: list[Any]) -> list[int]:
    return [max(1, round(before.elapsed_time(after) * 1e6)) for before, after in pairwise(events)]


def require(memory_bytes: int | None, need_bytes: int, what: str) -> None:
    """Refuse what does not fit, before the first byte is allocated.

    Raises
    ------
    MemoryNeededError
        It needs more than nine tenths of the memory.
    """
    if memory_bytes is not None and need_bytes > 0.9 * memory_bytes:
        raise MemoryNeededError(
            f"{what} needs about {need_bytes / 1e9:.1f} GB and the device has {memory_bytes / 1e9:.1f}: left out"
        )


@contextmanager
def scratch(device: str, seed: int) -> Iterator[None]:
    """Seed what is random, compute FP32 in FP32, collect no garbage meanwhile, and give the memory back at the end.

    TF32 is off for products by PyTorch's default but on for convolutions and recurrent layers. The switches are those
    that every version since 1.7 has: mixing them with their successors (2.9) is refused by PyTorch itself. Attention
    is not cuDNN's, which PyTorch prefers in some versions: it plans for every new length. The switches stay as set.
    """
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)  # whose streams and events are the current ones
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
            torch.backends.cuda.enable_cudnn_sdp(False)
    # Of a step before that failed, whose frames may have held on to memory until now; on a CPU that can wait.
    gc.collect(2 if on_gpu else 1)
    if on_gpu:
        torch.cuda.empty_cache()
    torch.manual_seed(seed)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if on_gpu:
            torch.cuda.empty_cache()
