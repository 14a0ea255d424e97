"""`CpuMachine`: a CPU in the place of a GPU, for tests and for whoever wants to see a recording without one.

Times are real; what is timed is a twin. A stream is a thread. Products and passes over memory use all cores, or so many
as their partition has (affinity of the thread and of those that it starts); copies are one thread's, `blocks` pieces
one behind the other; a copy engine is a thread that copies. Priority is niceness, which only works downwards: the most
urgent member of a run keeps its own, the others give way. There are no cache hints and no copies by kernels that read
the host's memory. Kernels of known residency are operators that do the same, and of no residency.
"""

import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.held import Held, slots_of
from benchmarks.gpu.kernels import Bound, Place, bind, sets_of
from benchmarks.gpu.residency_kernels import FACTOR, scale
from benchmarks.gpu.step import Member
from benchmarks.gpu.work import Work

__all__ = ["CpuMachine"]

TWINS = ("copy_engine", "copy_kernel", "partitions", "priorities", "residency")
MOST_SETS = 2
HELD_BYTES = 2 << 30
NICE_A_PRIORITY = 5
BARRIER_SECONDS = 60
#: The end of a lag, which is waited for awake, for sleeping is not as exact.
SPUN_NS = 500_000
COPIES = ("copy_kernel", "copy_engine", "collective")


@dataclass(frozen=True)
class _Seat:
    """What a thread is: which stream of a run, on which cores, how nice, and of how many threads its operators are."""

    slot: int
    cores: tuple[int, ...]
    nice: int
    threads: int


class Pieces:
    """Kernels that PyTorch has none of, on a CPU."""

    def copy(self, source: Any, target: Any, blocks: int) -> None:
        """Copy in so many pieces."""
        for piece, place in zip(source.chunk(blocks), target.chunk(blocks), strict=True):
            place.copy_(piece)

    def read(self, source: Any, sums: Any, hint: str) -> None:
        """Sum a flat tensor."""
        _refuse(hint)
        sums.copy_(source.sum())

    def update(self, values: Any, hint: str) -> None:
        """Replace every x by 1 - x."""
        import torch

        _refuse(hint)
        torch.sub(torch.ones(()), values, out=values)


class Operators:
    """Operators in the place of kernels of known residency, which take one thread's copies in so many pieces."""

    def launcher(self, work: Work, tensors: Mapping[str, Any]) -> Callable[[], object]:
        """Return what launches a work on tensors, by the names of `launch_of`."""
        if work.kind == "fma":
            return partial(_multiply, work, tensors["x"], tensors["out"])
        if work.kind == "update":
            return partial(Pieces().update, tensors["target"], "")
        copy = partial(Pieces().copy, tensors["source"], tensors["target"], work.blocks)
        return partial(_copy_when_told, work.k, tensors["state"], copy) if work.kind == "collective" else copy


def _multiply(work: Work, x: Any, out: Any) -> None:
    import torch

    accumulators = torch.outer(x, torch.tensor([scale(at) for at in range(work.n)]))
    for _ in range(work.k):
        accumulators.mul_(FACTOR)
    torch.sum(accumulators, 1, out=out)


def _copy_when_told(wait_ns: int, state: Any, copy: Callable[[], object]) -> None:
    """Copy when another thread sets a flag, as it does after a while; count in `state` if it did not."""
    flag = threading.Event()
    threading.Timer(wait_ns * 1e-9, flag.set).start()
    state[2] += not flag.wait(BARRIER_SECONDS)
    copy()


class CpuMachine:
    """The cores that this process may run on."""

    def __init__(self) -> None:
        # A thread that waits must not spin on a core that another measures.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        self.device = "cpu"
        self._torch = torch
        self._cores = tuple(sorted(os.sched_getaffinity(0)))
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._seats: dict[_Seat, ThreadPoolExecutor] = {}
        self._held = Held(self._bound, HELD_BYTES)
        self._checked: set[Work] = set()

    @property
    def features(self) -> frozenset[str]:
        """What it has a twin of, and the profiler."""
        found = {"copy_engine", "priorities", "profiler"} | ({"partitions"} if len(self._cores) > 1 else set())
        return frozenset(found | ({"compiler"} if shutil.which("c++") else set()))

    def facts(self) -> dict[str, Any]:
        """Return what Linux says of the CPU; `twins` are the features that stand for a GPU's."""
        cores = len(self._cores)
        return {
            "name": _first("/proc/cpuinfo", r"^model name[^:]*:\s*(.+)$"),
            "vendor": _first("/proc/cpuinfo", r"^vendor_id[^:]*:\s*(.+)$"),
            "architecture": platform.machine(),
            "compute_units": cores,
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "l2_bytes": last_cache_bytes(Path("/sys/devices/system/cpu/cpu0/cache")),
            "features": sorted(self.features),
            "twins": list(TWINS),
            "partitions": [[part, cores - part] for part in range(1, cores // 2 + 1)],
        }

    def state(self) -> dict[str, Any]:
        """Return the load of the last minute."""
        return {"load": round(os.getloadavg()[0], 2)}

    def synchronize(self) -> None:
        """Do nothing: every run waits for its threads."""

    def release(self) -> None:
        """Give all buffers and threads back."""
        self._held.clear()
        for pool in self._seats.values():
            pool.shutdown()
        self._seats.clear()

    def alone(self, member: Member, repetitions: int) -> list[int]:
        """Return how long a member's launches took, ns, each time."""
        return [end - start for ((start, end),) in self.together([member], repetitions)]

    def together(self, members: Sequence[Member], repetitions: int) -> list[list[tuple[int, int]]]:
        """Return (start, end) of every member, ns from the first start, each time; one run before is not counted."""
        slots = slots_of(members)
        bounds = self._held.of([(member.work, slot) for member, slot in zip(members, slots, strict=True)])
        pools = [self._pool(seat) for seat in self._seats_of(members)]
        return [self._once(members, bounds, pools) for _ in range(1 + repetitions)][1:]

    def residency_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return nothing of any: operators are of no residency."""
        return [{} for _ in works]

    def kernels_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return nothing of any: a CPU runs no kernel that a profiler would name."""
        return [{} for _ in works]

    def _once(
        self, members: Sequence[Member], bounds: Sequence[Bound], pools: Sequence[ThreadPoolExecutor]
    ) -> list[tuple[int, int]]:
        gate = _Gate(len(members))
        runs = [
            pool.submit(gate.run, member, bound) for member, bound, pool in zip(members, bounds, pools, strict=True)
        ]
        times = [run.result() for run in runs]
        origin = min(start for start, _ in times)
        return [(start - origin, end - origin) for start, end in times]

    def _bound(self, work: Work) -> Bound:
        if work.kind == "zero_copy":
            raise ValueError(f"{work.name}: a CPU has no memory but its own")
        sets = min(MOST_SETS, sets_of(work, HELD_BYTES))
        pieces = Pieces() if work.blocks or work.kind in ("read", "update") else None
        bound = bind(work, Place("cpu", sets, pieces, Operators()))
        if work not in self._checked:
            bound.check()
            self._checked.add(work)
        bound.launch(0)
        return bound

    def _seats_of(self, members: Sequence[Member]) -> list[_Seat]:
        most = max(member.priority for member in members)
        parts = iter(self._parts([member.units for member in members if member.units]))
        seats = []
        for slot, member in enumerate(members):
            cores = next(parts) if member.units else self._cores
            threads = 1 if member.work.kind in COPIES else len(cores)
            nice = min(19, self._nice + NICE_A_PRIORITY * (most - member.priority))
            seats.append(_Seat(slot, cores, nice, threads))
        return seats

    def _parts(self, units: Sequence[int]) -> list[tuple[int, ...]]:
        """Return disjoint cores, the first ones first."""
        if sum(units) > len(self._cores):
            raise ValueError(f"no partitions of {list(units)} cores; there are {len(self._cores)}")
        ends = [sum(units[: at + 1]) for at in range(len(units))]
        return [self._cores[end - count : end] for count, end in zip(units, ends, strict=True)]

    def _pool(self, seat: _Seat) -> ThreadPoolExecutor:
        if seat not in self._seats:
            self._seats[seat] = ThreadPoolExecutor(1, initializer=self._sit, initargs=(seat,))
        return self._seats[seat]

    def _sit(self, seat: _Seat) -> None:
        """Make the calling thread what a seat says; threads that it starts later inherit it."""
        os.sched_setaffinity(0, seat.cores)
        os.setpriority(os.PRIO_PROCESS, 0, seat.nice)
        self._torch.set_num_threads(seat.threads)


class _Gate:
    """Lets threads go together, those with a lag after the first."""

    def __init__(self, members: int) -> None:
        self._opened_ns = 0
        self._barrier = threading.Barrier(members, action=self._open)

    def run(self, member: Member, bound: Bound) -> tuple[int, int]:
        """Launch, and return when that began and ended."""
        self._barrier.wait(BARRIER_SECONDS)
        if member.lag_ns > SPUN_NS:
            time.sleep((member.lag_ns - SPUN_NS) * 1e-9)
        while time.perf_counter_ns() < self._opened_ns + member.lag_ns:
            pass
        start = time.perf_counter_ns()
        for turn in range(member.launches):
            bound.launch(turn)
        return start, time.perf_counter_ns()

    def _open(self) -> None:
        self._opened_ns = time.perf_counter_ns()


def last_cache_bytes(folder: Path) -> int | None:
    """Return the size of the last cache of a core, as Linux tells it; nothing where it does not."""
    units = {"K": 1 << 10, "M": 1 << 20, "": 1}
    found = []
    for entry in folder.glob("index*"):
        level, size = (_first(str(entry / name), r"^(\w+)$") for name in ("level", "size"))
        if level and size and (parts := re.fullmatch(r"(\d+)([KM]?)", size)):
            found.append((int(level), int(parts[1]) * units[parts[2]]))
    return max(found)[1] if found else None


def _refuse(hint: str) -> None:
    if hint:
        raise ValueError(f"a CPU takes no cache hint ({hint})")


def _first(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None
