"""`Timeline`: launches on several streams that begin together, and when each stream began and ended.

All is put into the streams behind a closed gate: an event that a stream of its own records after a kernel that spins
long enough for the host to be done. Then the host has no part in what is timed. Whether the gate was still closed when
the host was done is looked at each time, and where not, that run is thrown away and repeated with a longer wait.

What this guarantees of order: a stream with a lag is let go after the streams with less, by the device's own clock. Of
streams let go by the same gate, nothing is: the device may take up either first.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GateError", "Queue", "Timeline"]

ATTEMPTS = 5
#: What the host is given for what is not a launch, and for the first launch that nothing is known of.
BASE_NS = 150_000
FIRST_LAUNCH_NS = 30_000
LEAST_LAUNCH_NS = 3_000
SLACK = 1.5
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

    def run(self, queues: Sequence[Queue]) -> list[tuple[int, int]]:
        """Return (start, end) of every queue, ns from the first start.

        Raises
        ------
        GateError
            The host was too slow, `ATTEMPTS` times.
        """
        launches = sum(queue.launches for queue in queues)
        wait_ns = BASE_NS + SLACK * self._launch_ns * launches
        for _ in range(ATTEMPTS):
            found, closed, took_ns = self._once(queues, wait_ns)
            self._launch_ns = max((took_ns - BASE_NS) / launches, self._launch_ns / 2, LEAST_LAUNCH_NS)
            if closed:
                return found
            wait_ns = BASE_NS + 2 * max(wait_ns, took_ns)
        raise GateError(
            f"{launches} launches took the host {took_ns / 1e6:.1f} ms, more than the device waited for, {ATTEMPTS} "
            "times; does something make launches wait (CUDA_LAUNCH_BLOCKING, a debugger, a queue that is full)?"
        )

    def _once(self, queues: Sequence[Queue], wait_ns: float) -> tuple[list[tuple[int, int]], bool, int]:
        """Return what was found, whether the gate was closed until the host was done, and when that was, ns."""
        self._cuda.synchronize()
        begun = self._clock()
        gates = self._gates(wait_ns, sorted({0, *(queue.lag_ns for queue in queues)}))
        marks = [self._enqueue(queue, gates[queue.lag_ns]) for queue in queues]
        closed = not gates[0].query()
        took_ns = self._clock() - begun
        self._cuda.synchronize()
        times = [tuple(round(gates[0].elapsed_time(mark) * 1e6) for mark in pair) for pair in marks]
        origin = min(start for start, _ in times)
        return [(start - origin, end - origin) for start, end in times], closed, took_ns

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
