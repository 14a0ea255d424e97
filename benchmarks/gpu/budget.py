"""`Budget`: how much of a recording's time each part may take, and who gets what is left over."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.gpu.step import Step

__all__ = ["SHARES", "Budget"]

#: Of the minutes, by part, against the sum of those of the parts that are recorded.
SHARES: Mapping[str, float] = {
    "a": 0.40, "a2": 0.18, "b": 0.07, "c": 0.06, "d": 0.05, "e": 0.27, "f": 0.15, "g": 0.04,
    "h": 0.80,
}  # fmt: skip
#: Kept back for the end: states, tables.
KEPT_SECONDS = 5.0


class Budget:
    """Seconds by part.

    A part may use its share, and what parts that are finished did not use.

    Parameters
    ----------
    seconds : float
        Of all.
    steps : sequence of Step
        That are to be recorded.
    elapsed : callable
        Seconds since the recording began.
    """

    def __init__(self, seconds: float, steps: Sequence[Step], elapsed: Callable[[], float]) -> None:
        self._seconds, self._elapsed = max(0.0, seconds - KEPT_SECONDS), elapsed
        self._pending = {part: sum(step.part == part for step in steps) for part in {step.part for step in steps}}
        shares = sum(SHARES[part] for part in self._pending)
        self._unspent = {part: self._seconds * SHARES[part] / shares for part in self._pending}

    def over(self, step: Step, kept: float = 0.0) -> bool:
        """Return whether a step would end after all time is up but for the seconds kept for others."""
        return self._elapsed() + step.seconds > self._seconds - kept

    def fits(self, step: Step) -> bool:
        """Return whether a step can be had with what its part, and finished parts, have left."""
        finished = sum(
            seconds for part, seconds in self._unspent.items() if not self._pending[part] and part != step.part
        )
        return not self.over(step) and step.seconds <= self._unspent[step.part] + finished

    def spend(self, step: Step, seconds: float) -> None:
        """Take what a step took from its part."""
        self._pending[step.part] -= 1
        self._unspent[step.part] -= seconds
