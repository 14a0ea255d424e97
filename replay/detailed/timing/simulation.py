"""Simulate the launches of a plan, and keep the state in a file, so that a simulation that was stopped goes on."""

import hashlib
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.files import replaced_file
from replay.detailed.launch import CHECKS, BlockRunner, CallResult, LaunchPlan, Progress, RunChecks, runners
from replay.detailed.timing.launches import WAVES, LaunchTiming, TimedDevice, TimedLaunch, restore_array
from replay.memory.dram import DramCounters

#: Version of the file.
_FORMAT = 1

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A file that keeps the state of a simulation.

    Parameters
    ----------
    path : Path
        File.
    period : float
        Seconds after which the state is written again.
    """

    path: Path
    period: float = 60.0


@dataclass(frozen=True)
class SimulatedPlan:
    """Launches that were executed, and on a device also timed.

    Parameters
    ----------
    outputs : mapping of str to array
        Each buffer after the last launch.
    calls : tuple of CallResult
        What each launch executed.
    timings : tuple of LaunchTiming
        How long each launch takes; empty without a device.
    shared_bytes : tuple of int
        Shared memory of a block of each launch.
    resumed : bool
        Whether it went on from a checkpoint.
    """

    outputs: Mapping[str, npt.NDArray[Any]]
    calls: tuple[CallResult, ...]
    timings: tuple[LaunchTiming, ...]
    shared_bytes: tuple[int, ...]
    resumed: bool = False


def simulate_plan(
    plan: LaunchPlan,
    target: TimedDevice | None = None,
    *,
    registers: int | None = None,
    waves: int | None = WAVES,
    execute_all: bool = True,
    checks: RunChecks = CHECKS,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> SimulatedPlan:
    """Execute the launches of a plan in order, and time them if there is a device, each with cold caches.

    Parameters
    ----------
    plan : LaunchPlan
        Launches and buffers.
    target : TimedDevice, optional
        Device.
    registers, waves, execute_all : optional
        As those of `TimedLaunch`.
    checks : RunChecks
        What stops a kernel.
    progress : callable, optional
        Called with (blocks done, blocks in all, name of the kernel).
    checkpoint : Checkpoint, optional
        Where the state is kept. If the file is there, the simulation goes on from it, bit for bit. It is removed at the
        end.

    Raises
    ------
    SeqPointError
        A PTX file is missing or not supported, a launch does not fit, a kernel does what it must not, or the file is
        not the state of this simulation.
    """
    kept = None
    if checkpoint:
        identity = _identity(plan, target, (registers, waves, execute_all, checks.limit, checks.may_race))
        kept = _SavedLaunches(checkpoint.path, identity, checkpoint.period)
    calls, timings, shared, last = [], [], [], None
    for number, runner in enumerate(runners(plan, checks)):
        call, name = runner.call, runner.call.entry or runner.program.entry.name
        launch = _RunningLaunch(runner, target, registers, waves)
        if kept:
            kept.restore(number, launch)
        if not (kept and number < len(kept.finished)):
            launch.run(_hook(kept, launch, progress, name), execute_all)
            if kept:
                kept.finish(launch)
        calls.append(CallResult(name, call.grid, call.block, runner.blocks, runner.warp_instructions, runner.unset))
        timings += [launch.timing] if launch.timing else []
        shared.append(runner.program.shared_bytes + call.shared_bytes)
        last = runner
    if kept:
        kept.path.unlink(missing_ok=True)
    outputs = last.memory.outputs() if last else {}
    return SimulatedPlan(outputs, tuple(calls), tuple(timings), tuple(shared), kept is not None and kept.was_there)


def _hook(
    kept: "_SavedLaunches | None", launch: "_RunningLaunch", progress: Progress | None, name: str
) -> Callable[[int, int], None]:  # fmt: skip
    def called(done: int, count: int) -> None:
        if progress:
            progress(done, count, name)
        if kept:
            kept.keep(launch)

    return called


class _RunningLaunch:
    """A launch that is executed, and timed if there is a device."""

    def __init__(
        self, runner: BlockRunner, target: TimedDevice | None, registers: int | None, waves: int | None
    ) -> None:
        self.runner = runner
        self.timed = TimedLaunch(runner, target, registers, waves) if target else None
        self.timing: LaunchTiming | None = None
        self._done = 0

    def run(self, progress: Callable[[int, int], None], execute_all: bool) -> None:
        """Run what is left; `progress` is called when `arrays` can be taken."""
        if self.timed is not None:
            self.timing = self.timed.run(progress, execute_all)
            return
        step = max(self.runner.blocks // 100, 1)
        while self._done < self.runner.blocks:
            end = min(self._done + step, self.runner.blocks)
            self.runner.run(np.arange(self._done, end, dtype=np.int64))
            self._done = end
            progress(end, self.runner.blocks)

    def arrays(self) -> Arrays:
        """Return the state."""
        if self.timed is not None:
            return self.timed.arrays()
        done = np.array([self._done, self.runner.warp_instructions])
        return {"done": done, "memory": self.runner.memory.bytes}

    def restore(self, saved: Arrays) -> None:
        """Go on from a state."""
        if self.timed is not None:
            self.timed.restore(saved)
            return
        restore_array(self.runner.memory.bytes, saved["memory"])
        self._done, executed = (int(value) for value in saved["done"])
        self.runner.resume(executed)


@dataclass
class _SavedLaunches:
    """A file with the timings of launches that have ended, and the state of the launch that runs."""

    path: Path
    identity: bytes
    period: float
    #: Instructions of warps, and timing as arrays, of each launch that has ended.
    finished: list[tuple[int, Arrays]] = field(default_factory=list)
    #: State of the launch that runs; or only the memory, if it has not begun.
    current: Arrays = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._written = time.monotonic()
        self.was_there = self.path.exists()
        if not self.was_there:
            return
        try:
            with self.path.open("rb") as stream, np.load(stream, allow_pickle=False) as saved:
                if saved["identity"].tobytes() != self.identity:
                    raise InvalidInputError(
                        f"{self.path}: this is the state of another simulation; remove the file, or name another one"
                    )
                executed = saved["executed"].tolist()
                self.finished = [(int(n), _below(saved, f"finished.{i}.")) for i, n in enumerate(executed)]
                self.current = _below(saved, "current.")
        except (OSError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile):
            raise self._damaged() from None

    def _damaged(self) -> InvalidInputError:
        return InvalidInputError(f"{self.path}: this is no saved state of a simulation, or it is damaged")

    def restore(self, number: int, launch: _RunningLaunch) -> None:
        """Give a launch what was saved of it."""
        runner = launch.runner
        try:
            if number < len(self.finished):
                executed, timing = self.finished[number]
                runner.resume(executed)
                launch.timing = _timing(timing) if timing else None
                if number == len(self.finished) - 1 and set(self.current) == {"memory"}:
                    restore_array(runner.memory.bytes, self.current["memory"])
            elif self.current.keys() - {"memory"}:
                launch.restore(self.current)
        except (ValueError, KeyError, TypeError):
            raise self._damaged() from None
        if number >= len(self.finished):
            self.current = {}

    def finish(self, launch: _RunningLaunch) -> None:
        """Note that a launch has ended."""
        timing = _timing_arrays(launch.timing) if launch.timing else {}
        self.finished.append((launch.runner.warp_instructions, timing))
        self._write(lambda: {"memory": launch.runner.memory.bytes})

    def keep(self, launch: _RunningLaunch) -> None:
        """Write the state of the launch that runs, if it is time."""
        self._write(launch.arrays)

    def _write(self, current: Callable[[], Arrays]) -> None:
        if time.monotonic() - self._written < self.period:
            return
        arrays: dict[str, Any] = {
            "identity": np.frombuffer(self.identity, dtype=np.uint8),
            "executed": np.array([executed for executed, _ in self.finished], dtype=np.int64),
        }
        arrays |= {f"current.{name}": value for name, value in current().items()}
        for number, (_, timing) in enumerate(self.finished):
            arrays |= {f"finished.{number}.{name}": value for name, value in timing.items()}
        with replaced_file(self.path) as file:
            np.savez(file, **arrays)
        self._written = time.monotonic()


def _below(saved: Mapping[str, npt.NDArray[Any]], prefix: str) -> Arrays:
    return {name.removeprefix(prefix): saved[name] for name in saved if name.startswith(prefix)}


def _identity(plan: LaunchPlan, target: TimedDevice | None, how: object) -> bytes:
    """Return a hash of all that the state belongs to."""
    digest = hashlib.sha256(f"{_FORMAT}{target}{how}{dict(plan.pointers)}".encode())
    for name, array in plan.buffers.items():
        digest.update(f"{name}{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    for call in plan.calls:
        digest.update(f"{replace(call, ptx=Path())}".encode())
        digest.update(call.ptx.read_bytes())
    return digest.digest()


def _timing_arrays(timing: LaunchTiming | DramCounters) -> Arrays:
    """Return a timing as arrays by name; those of the counters of DRAM begin with ``dram.``."""
    arrays: Arrays = {}
    for item in fields(timing):
        value = getattr(timing, item.name)
        if isinstance(value, DramCounters):
            arrays |= {f"dram.{name}": part for name, part in _timing_arrays(value).items()}
        elif isinstance(value, dict):
            arrays |= {f"{item.name}.{name}": np.array(number) for name, number in value.items()}
        else:
            arrays[item.name] = np.asarray(value)
    return arrays


def _timing(saved: Arrays) -> LaunchTiming:
    """Return the timing of `_timing_arrays`."""
    counters = {name: int(value) for name, value in _below(saved, "counters.").items()}
    dram = DramCounters(**_values(_below(saved, "dram."), (item.name for item in fields(DramCounters))))
    names = (item.name for item in fields(LaunchTiming) if item.name not in ("counters", "dram"))
    return LaunchTiming(**_values(saved, names), counters=counters, dram=dram)


def _values(saved: Arrays, names: Iterable[str]) -> dict[str, Any]:
    """Return arrays by name, those without a dimension as numbers."""
    return {name: saved[name] if saved[name].ndim else saved[name].item() for name in names}
