"""`record`: the loop over the steps of a plan: one after the other, each written down before the next begins."""

import faulthandler
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.layout import checked
from benchmarks.gpu.step import Machine, Step

__all__ = [
    "DeviceLostError",
    "Outcome",
    "Progress",
    "Session",
    "Stop",
    "hangs_no_longer_than",
    "note_death",
    "ordered",
    "record",
]

#: A step that takes longer than this, or ten times its guess, hangs: the process is ended.
HANG_SECONDS = 90.0
MARK = "running.json"


class DeviceLostError(RuntimeError):
    """The device answers nothing in this process any more; another process may go on."""


@dataclass
class Outcome:
    """What became of steps: keys by fate."""

    recorded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    interrupted: bool = False


class Progress:
    """One line that changes on a terminal; elsewhere a line a part."""

    def __init__(self, stream: TextIO, steps: Sequence[Step]) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._count, self._done = len(steps), 0
        self._pending = {part: sum(step.part == part for step in steps) for part in {step.part for step in steps}}

    def begins(self, step: Step) -> None:
        """Say which step is recorded."""
        if self._live:
            self._stream.write(f"\r\x1b[K{self._done}/{self._count} {step.key[:100]}")
            self._stream.flush()

    def ends(self, step: Step, fate: str) -> None:
        """Say what became of it, if that is worth a line."""
        if fate == "left":
            return
        self._done += 1
        self._pending[step.part] -= 1
        if fate != "recorded":
            self.say(f"{step.key}: {fate}")
        if not self._pending[step.part]:
            self.say(f"part {step.part} done, {self._done} of {self._count} steps")

    def say(self, text: str) -> None:
        """Write a line."""
        clean = "".join(character if character.isprintable() else " " for character in text[:500])
        self._stream.write(("\r\x1b[K" if self._live else "") + clean + "\n")
        self._stream.flush()


class Stop:
    """Set by the first Ctrl-C, after which the step that runs is still written down; the second ends at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Catch Ctrl-C inside."""
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@dataclass(frozen=True)
class Session:
    """What a loop works with."""

    machine: Machine
    journal: Journal
    folder: Path
    stop: Stop
    progress: Progress


def ordered(steps: Sequence[Step], journal: Journal) -> list[Step]:
    """Return the steps that are not recorded yet; steps that failed before come last."""
    pending = [step for step in steps if step.key not in journal.done]
    return sorted(pending, key=lambda step: step.key in journal.failed)


def record(session: Session, steps: Sequence[Step], seconds: float, elapsed: Callable[[], float]) -> Outcome:
    """Record steps until all are done, time is up or somebody says stop.

    Steps that do not fit their part's share are tried again with what is left over. What a profiler runs in comes
    behind all others: those that do not fit their share are tried before it, for as long as it keeps the time that it
    is guessed to need, and then once more. Then, training steps are left to the next process: a profiler slows what
    is timed against the host's pace, even after it has ended.

    Raises
    ------
    DeviceLostError
        The device is in error; what failed is in the journal.
    """
    budget, outcome = Budget(seconds, steps, elapsed), Outcome()
    run = partial(_each, session, budget, outcome)
    last = [step for step in steps if step.profiles]
    kept = sum(step.seconds for step in last)
    first = run([step for step in steps if not step.profiles], budget.fits)
    first = run(first, lambda step: not budget.over(step, kept))
    last = run(last, budget.fits)
    for step in run(
        [*first, *last], lambda step: (step.profiles or step.part not in ("e", "h")) and not budget.over(step)
    ):
        outcome.left.append(step.key)
        session.progress.ends(step, "left")
    outcome.interrupted = session.stop.asked
    return outcome


def _each(
    session: Session, budget: Budget, outcome: Outcome, steps: Sequence[Step], allowed: Callable[[Step], bool]
) -> list[Step]:
    """Record the steps that are allowed when it is their turn; return the others."""
    waiting, part = [], None
    for step in steps:
        if session.stop.asked or not allowed(step):
            waiting.append(step)
            continue
        if part not in (None, step.part):
            _release(session.machine)
        part = step.part
        _one(session, step, budget, outcome)
    if part is not None:
        _release(session.machine)
    return waiting


def _one(session: Session, step: Step, budget: Budget, outcome: Outcome) -> None:
    session.progress.begins(step)
    begun = time.perf_counter()
    with _watched(session, step):
        error = _attempt(session, step, begun)
    budget.spend(step, time.perf_counter() - begun)
    (outcome.failed if error else outcome.recorded).append(step.key)
    session.progress.ends(step, error or "recorded")


def _attempt(session: Session, step: Step, begun: float) -> str:
    """Run a step and write down what it gave, or how it failed; return that, or nothing."""
    try:
        tables = checked(step.run(session.machine, session.folder))
        session.machine.synchronize()
        session.journal.write(step.key, step.part, time.perf_counter() - begun, tables)
        return ""
    except Exception as error:  # noqa: BLE001  Whatever a step raises, the others are still worth having.
        text = f"{type(error).__name__}: {error}"
        session.journal.fail(step.key, step.part, text)
        # The frames of the error hold tensors; dropping them lets a device that ran out of memory go on.
        error.__traceback__ = None
    _recover(session.machine, text)
    return text


def _recover(machine: Machine, text: str) -> None:
    """Free what a failed step held, and find out whether the device still answers."""
    try:
        machine.synchronize()
        _release(machine)
        machine.synchronize()
    except Exception as error:
        raise DeviceLostError(f"{text}; and then the device gave {type(error).__name__}: {error}") from error


def _release(machine: Machine) -> None:
    """Give buffers back, where a machine keeps some: the next part wants the memory for others."""
    getattr(machine, "release", lambda: None)()


@contextmanager
def _watched(session: Session, step: Step) -> Iterator[None]:
    """Leave a mark as long as a step runs, and end the process if it hangs: the next one finds the mark."""
    mark = session.folder / MARK
    mark.write_text(json.dumps({"take": session.journal.take, "key": step.key}), encoding="utf-8")
    try:
        with hangs_no_longer_than(max(HANG_SECONDS, 10 * step.seconds)):
            yield
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def hangs_no_longer_than(seconds: float) -> Iterator[None]:
    """End the process, saying where it is, if what is inside takes longer."""
    # Without a file to write to (a test's, a notebook's), there is no watch.
    with suppress(OSError, ValueError, AttributeError, RuntimeError):
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def note_death(folder: Path, journal: Journal, steps: Sequence[Step]) -> None:
    """Write down a step during which an earlier process ended; it is recorded last, in case it does so again."""
    mark = folder / MARK
    if not mark.exists():
        return
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        entry = json.loads(mark.read_text(encoding="utf-8"))
        step = next((step for step in steps if step.key == entry["key"]), None)
        if step is not None and entry["take"] == journal.take:
            journal.fail(step.key, step.part, "the process ended while this step ran")
    mark.unlink(missing_ok=True)
