"""`Timeline`: launches on several streams that begin together, and when each stream began and ended.

All is put into the streams behind a closed gate: an event that a stream of its own records after a kernel that spins
long enough for the host to be done. Then the host has no part in what is timed. Whether the gate was still closed when
the host was done is looked at each time, and where not, that run is thrown away and repeated with a longer wait.

A kernel spins by cycles, and how many a ns has is not fixed: a device that idled begins at a fraction of its clock. So
every run looks how long its gate was closed, too; where that is far from what was asked, lags were as wrong, and the
run is repeated with the cycles of now.

What this guarantees of order: a stream with a lag is let go after the streams with less, by the device's own clock. Of
streams let go by the same gate, nothing is: the device may take up either first.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["GateError", "Queue", "Timeline"]

ATTEMPTS = 5
#: What the host is given for what is not a launch, and for the first launch that nothing is known of.
BASE_NS = 250_000
FIRST_LAUNCH_NS = 30_000
#: A launch is taken to need at least and at most so long: a host that stood still once must not make all wait after.
LEAST_LAUNCH_NS, MOST_LAUNCH_NS = 3_000, 60_000
SLACK = 1.5
#: The device spins before the gate's own wait begins, so that this is not timed with what the host needs to launch it.
LEAD_NS = 50_000
#: By which a gate's wait, and so a lag, may be off.
STEADY, UNSTEADY_ATTEMPTS = 0.15, 2
#: How long two streams spin that are to run at the same time.
PROBED_NS = 200_000
CALIBRATION_CYCLES = (1_000_000, 6_000_000)


class GateError(RuntimeError):
    """The host could not be done before the gate opened, however long it was given."""


@dataclass(frozen=True)
class Queue:
    """Launches one behind the other on a stream, which is let go `lag_ns` after the first."""

    stream: Any
    launch: Callable[[int], object]
    launches: int = 1
    lag_ns: int = 0


class Timeline:
    """Runs queues side by side.

    Parameters
    ----------
    cuda : module
        `torch.cuda`, or what stands for it in a test.
    clock : callable
        Of the host, ns.
    """

    def __init__(self, cuda: Any, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._cuda, self._clock = cuda, clock
        self._gate_stream = cuda.Stream()
        self._cycles_per_ns = self._calibrated()
        self._launch_ns = float(FIRST_LAUNCH_NS)

    @property
    def clock_mhz(self) -> float:
        """Clock of the device's compute units, MHz, as the last run found it while its gate was closed."""
        return 1000 * self._cycles_per_ns

    def run(self, queues: Sequence[Queue], before: Callable[[], object] = lambda: None) -> list[tuple[int, int]]:
        """Return (start, end) of every queue, ns from the first start.

        Parameters
        ----------
        queues : sequence of Queue
        before : callable
            Called ahead of each attempt; what it launches is over before the gate closes.

        Raises
        ------
        GateError
            The host was too slow, `ATTEMPTS` times.
        """
        launches = sum(queue.launches for queue in queues)
        wait_ns = BASE_NS + SLACK * self._launch_ns * launches
        for attempt in range(ATTEMPTS):
            before()
            found, closed, took_ns, steady = self._once(queues, wait_ns)
            guess_ns = max((took_ns - BASE_NS) / launches, self._launch_ns / 2, LEAST_LAUNCH_NS)
            self._launch_ns = min(guess_ns, MOST_LAUNCH_NS)
            # A clock that never settles is worth a run whose lags are a little off; an open gate is worth none.
            if closed and (steady or attempt >= UNSTEADY_ATTEMPTS):
                return found
            if not closed:
                wait_ns = BASE_NS + 2 * max(wait_ns, took_ns)
        raise GateError(
            f"{launches} launches took the host {took_ns / 1e6:.1f} ms, more than the device waited for, {ATTEMPTS} "
            "times; does something make launches wait (CUDA_LAUNCH_BLOCKING, a debugger, a queue that is full)?"
        )

    def side_by_side(self, a: Any, b: Any) -> bool:
        """Return whether two streams run at once: streams can share a queue of the device, and then one waits.

        Either is let go half a spin after the other; neither must begin or end late, whichever was filled first.
        """
        try:
            return self._overlap(a, b) and self._overlap(b, a)
        except GateError:
            return False

    def _overlap(self, a: Any, b: Any) -> bool:
        lag_ns = PROBED_NS // 2

        def spin(_: int) -> None:
            self._cuda._sleep(max(1, round(PROBED_NS * self._cycles_per_ns)))

        (start, end), second = self.run([Queue(a, spin), Queue(b, spin, lag_ns=lag_ns)])
        wanted = (0, PROBED_NS, lag_ns, lag_ns + PROBED_NS)
        return all(abs(found - at) < lag_ns / 2 for found, at in zip((start, end, *second), wanted, strict=True))

    def _once(self, queues: Sequence[Queue], wait_ns: float) -> tuple[list[tuple[int, int]], bool, int, bool]:
        """Return times, whether the gate was closed until the host was done, when that was (ns), and if lags hold."""
        self._cuda.synchronize()
        with _uncollected():
            begun = self._clock()
            self._sleep(LEAD_NS)
            before = self._event(self._gate_stream)
            gates = self._gates(wait_ns, sorted({0, *(queue.lag_ns for queue in queues)}))
            marks = [self._enqueue(queue, gates[queue.lag_ns]) for queue in queues]
            closed = not gates[0].query()
            took_ns = self._clock() - begun
        self._cuda.synchronize()
        steady = self._follow(wait_ns, before.elapsed_time(gates[0]) * 1e6)
        times = [tuple(round(gates[0].elapsed_time(mark) * 1e6) for mark in pair) for pair in marks]
        origin = min(start for start, _ in times)
        return [(start - origin, end - origin) for start, end in times], closed, took_ns, steady

    def _follow(self, wait_ns: float, waited_ns: float) -> bool:
        """Take up the device's clock as it is now; return whether it was about what was thought."""
        off = max(waited_ns, 1.0) / wait_ns
        self._cycles_per_ns /= off
        return abs(off - 1) <= STEADY

    def _gates(self, wait_ns: float, lags: Sequence[int]) -> dict[int, Any]:
        """Return an event a lag, the first after `wait_ns`."""
        gates, passed = {}, -wait_ns
        for lag in lags:
            self._sleep(lag - passed)
            gates[lag] = self._event(self._gate_stream)
            passed = lag
        return gates

    def _enqueue(self, queue: Queue, gate: Any) -> tuple[Any, Any]:
        queue.stream.wait_event(gate)
        start = self._event(queue.stream)
        with self._cuda.stream(queue.stream):
            for turn in range(queue.launches):
                queue.launch(turn)
        return start, self._event(queue.stream)

    def _event(self, stream: Any) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _sleep(self, duration_ns: float) -> None:
        with self._cuda.stream(self._gate_stream):
            self._cuda._sleep(max(1, round(duration_ns * self._cycles_per_ns)))

    def _calibrated(self) -> float:
        """Return how many cycles of `_sleep` a ns has, from two sleeps, so that what launching costs is no part."""
        self._cycles_per_ns = 1.0
        self._slept(CALIBRATION_CYCLES[0])
        short, long = (self._slept(cycles) for cycles in CALIBRATION_CYCLES)
        if long <= short:
            raise GateError("the device's sleep takes no time that its events see")
        return (CALIBRATION_CYCLES[1] - CALIBRATION_CYCLES[0]) / (long - short)

    def _slept(self, cycles: int) -> float:
        before = self._event(self._gate_stream)
        self._sleep(cycles)
        after = self._event(self._gate_stream)
        self._cuda.synchronize()
        return float(before.elapsed_time(after)) * 1e6


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let no garbage be collected meanwhile: it takes longer than many launches."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
