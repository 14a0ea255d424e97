"""`IterationLog`: the length and the wall time of every iteration, written while a run goes on, without a profiler."""

import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from profilers.errors import InvalidInputError
from profilers.record.files import Columns, Row, row_file
from profilers.record.values import LIMIT, checked_names, finite, whole

__all__ = ["IterationLog", "TimedIteration"]

_NO_STATISTICS: Mapping[str, float] = MappingProxyType({})


class IterationLog:
    """Write one row an iteration to a CSV or Parquet file that `seqpoint select` and `read_log` read.

    The columns are ``iteration`` (0, 1, 2, ...), ``sequence_length``, ``batch`` where it is given,
    ``duration_ns``, and what else is measured. The first row settles which columns there are.

    A CSV file is written every `flush_every` iterations and at the end, whole lines at a time: a process that is
    killed leaves all but the last rows. A Parquet file is written at the end alone. What was in the file before
    stays until the first rows are written. An iteration that raises is not logged, but counted: its number is
    left out; everything before it is kept. In a job of several processes each needs a file of its own.

    Parameters
    ----------
    path : path
        ``.csv`` or ``.parquet``.
    synchronize : callable, optional
        Called before the clock is read, as ``torch.cuda.synchronize``. Work on a GPU goes on after the call that
        launched it: without this the duration is that of the host.
    clock : callable
        Returns ns.
    flush_every : int
        Rows between two writes of a CSV file; take fewer where iterations are long.

    Raises
    ------
    InvalidInputError, NotFoundError
        The file cannot be written, or a value cannot stand in a log.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ticks = iter([1_000, 3_500, 9_000, 9_900])
    ...     with IterationLog(f"{folder}/log.csv", clock=lambda: next(ticks)) as log:
    ...         for length in (37, 12):
    ...             with log.iteration(sequence_length=length, batch=16) as it:
    ...                 it.add("padding", 0.25)
    ...     print((Path(folder) / "log.csv").read_text())
    iteration,sequence_length,batch,duration_ns,padding
    0,37,16,2500,0.25
    1,12,16,900,0.25
    <BLANKLINE>
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        synchronize: Callable[[], object] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        flush_every: int = 200,
    ) -> None:
        self._path = Path(path)
        self._file = row_file(self._path)
        self._flush_every = whole(flush_every, "flush_every", 1)
        self._synchronize = synchronize
        self._clock = clock
        self._rows: list[Row] = []
        self._written = 0
        self._next = 0
        self._names: tuple[str, ...] | None = None
        self._has_batch = True
        self._plain = False  # whether a row is four whole numbers
        self._inside = False
        self._closed = False

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def iteration(self, *, sequence_length: int, batch: int | None = None) -> "TimedIteration":
        """Return a context that times what is done in it and logs that as one iteration.

        Parameters
        ----------
        sequence_length : int
            At least 1, tokens.
        batch : int, optional
            Sequences; in every iteration or in none.

        Raises
        ------
        InvalidInputError
            When it is entered: another iteration is open, or the log is closed. When it is left: as `record`.
        """
        return TimedIteration(self, sequence_length, batch)

    def record(
        self,
        *,
        sequence_length: int,
        duration_ns: int,
        batch: int | None = None,
        statistics: Mapping[str, float] = _NO_STATISTICS,
    ) -> None:
        """Log an iteration that was timed elsewhere.

        Parameters
        ----------
        sequence_length : int
            At least 1, tokens.
        duration_ns : int
            At least 0.
        batch : int, optional
            Sequences; in every iteration or in none.
        statistics : mapping of str to float
            Anything else that was measured: finite, and the same names in every iteration.

        Raises
        ------
        InvalidInputError
            A value is not as above, a name is taken, an iteration is open, the log is closed, or the file cannot
            be written.
        """
        self._row(self._begin(), (sequence_length, batch, duration_ns), statistics)

    def flush(self) -> None:
        """Write what a CSV file does not hold yet."""
        if self._rows:
            after = self._file.write(self._columns(), self._rows, self._written)
            # Between these two nothing interrupts; an interrupt before them has the same rows written again
            # in the same place.
            self._written = after
            self._rows = []

    def close(self) -> None:
        """Write what is not written yet; to close again does nothing."""
        if self._closed:
            return
        self.flush()
        if not self._written:  # a log without rows replaces an older one, too
            self._written = self._file.write(self._columns(), [], 0)
        self._file.finish(self._columns())
        self._closed = True

    def _begin(self) -> int:
        """Return the number of the next iteration."""
        self._check_open()
        number = self._next
        self._next = number + 1
        return number

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInputError(f"{self._path}: the log is closed; make another one")
        if self._inside:
            raise InvalidInputError(f"{self._path}: an iteration is open; end it before the next one")

    def _row(self, number: int, measured: tuple[int, int | None, int], statistics: Mapping[str, float]) -> None:
        length, batch, duration_ns = measured
        names = tuple(statistics)
        if names != self._names or (batch is None) is self._has_batch:
            names = self._agreed(number, batch is not None, statistics)
        row: Row = (number, whole(length, "sequence_length", 1))
        if batch is not None:
            row += (whole(batch, "batch", 0),)
        row += (whole(duration_ns, "duration_ns", 0),)
        if names:
            row += tuple([finite(statistics[name], name) for name in names])
        self._names, self._has_batch = names, batch is not None
        self._plain = self._has_batch and not names
        self._rows.append(row)
        if len(self._rows) >= self._flush_every:
            self.flush()

    def _agreed(self, number: int, has_batch: bool, statistics: Mapping[str, float]) -> tuple[str, ...]:
        """Return the names of the statistics in the order of the columns, which the first row settles."""
        if self._names is None:
            return checked_names(statistics)
        before = {*self._names, *(["batch"] if self._has_batch else [])}
        now = {*statistics, *(["batch"] if has_batch else [])}
        if before != now:
            differing = ", ".join(sorted(map(str, before ^ now)))
            raise InvalidInputError(
                f"{self._path}: iteration {number} differs in {differing} from those before it; "
                "a log holds the same columns in every row, without gaps"
            )
        return self._names

    def _columns(self) -> Columns:
        batch = [("batch", True)] if self._has_batch else []
        statistics = [(name, False) for name in self._names or ()]
        return (("iteration", True), ("sequence_length", True), *batch, ("duration_ns", True), *statistics)


class TimedIteration:
    """The context that `IterationLog.iteration` gives.

    Parameters
    ----------
    log : IterationLog
    sequence_length : int
    batch : int, optional
    """

    __slots__ = ("_batch", "_length", "_log", "_number", "_start_ns", "_statistics")

    def __init__(self, log: IterationLog, sequence_length: int, batch: int | None) -> None:
        self._log = log
        self._length = sequence_length
        self._batch = batch
        self._statistics: dict[str, float] | None = None

    def __enter__(self) -> Self:
        log = self._log
        if log._inside or log._closed:
            log._check_open()
        self._number = log._next
        log._next += 1
        log._inside = True
        try:
            if log._synchronize is not None:
                log._synchronize()
            self._start_ns = log._clock()
        except BaseException:
            log._inside = False
            raise
        return self

    def add(self, name: str, value: float) -> None:
        """Note a statistic of this iteration; a name that was noted before gets the new value."""
        if self._statistics is None:
            self._statistics = {}
        self._statistics[name] = value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        log = self._log
        log._inside = False
        if kind is None:
            if log._synchronize is not None:
                log._synchronize()
            self._end(log, log._clock() - self._start_ns)

    def _end(self, log: IterationLog, duration_ns: int) -> None:
        """Log the iteration: the common case here, in few calls; `_row` has the rest, and the errors."""
        length, batch = self._length, self._batch
        if (
            log._plain
            and self._statistics is None
            and type(length) is type(batch) is type(duration_ns) is int
            and 0 < length <= LIMIT
            and 0 <= batch <= LIMIT
            and 0 <= duration_ns <= LIMIT
        ):
            log._rows.append((self._number, length, batch, duration_ns))
            if len(log._rows) >= log._flush_every:
                log.flush()
        else:
            log._row(self._number, (length, batch, duration_ns), self._statistics or _NO_STATISTICS)
