"""A log of iterations, written while a training loop runs, without a profiler.

`IterationLog` logs the length and the wall time of every iteration, to a CSV file that grows or to a Parquet file that
is written at the end. A log holds whole numbers and finite statistics, in columns with distinct names. `LightningHooks`
and `lightning_callback` let Lightning drive a log or a profiler; Lightning is imported only to make its callback.
"""

import io
import math
import operator
import os
import re
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from numbers import Real
from os import PathLike
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

from profilers.errors import DependencyError, InvalidInputError, NotFoundError
from profilers.files import replaced_file

#: Largest whole number of a log: up to it, float64 is exact, as statistics are read. In ns it is 104 days.
LIMIT = 1 << 53
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
#: Names of columns to which `read_log` gives a meaning; it reads NAME_ns as NAME.
_RESERVED = frozenset({"iteration", "rank", "start", "sequence_length", "batch", "duration"})


def checked_integer(value: Any, name: str, least: int) -> int:
    """Return a value as an int, after checking its range.

    Parameters
    ----------
    value : int or NumPy integer
        Value to check.
    name : str
        Name of the value, for the message.
    least : int
        Smallest value that is allowed.

    Raises
    ------
    InvalidInputError
        The value is no whole number, is below `least`, or is above `LIMIT`.

    Examples
    --------
    >>> checked_integer(37, "sequence_length", 1)
    37
    """
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = operator.index(value)
        except TypeError as error:
            kind = type(value).__name__
            raise InvalidInputError(f"{name} is {_shown(value)} ({kind}); it must be a whole number") from error
    if not least <= value <= LIMIT:
        raise InvalidInputError(f"{name} is {value}; it must be from {least} to {LIMIT}")
    return value  # type: ignore[no-any-return]


def checked_number(value: Any, name: str) -> float:
    """Return the value of a statistic as a float.

    Parameters
    ----------
    value : number
        Value to check.
    name : str
        Name of the statistic, for the message.

    Raises
    ------
    InvalidInputError
        The value is no number, is not finite, or is a tensor, for which the host would have to wait.

    Examples
    --------
    >>> checked_number(3, "padding")
    3.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInputError(
            f"statistic {name} is {_shown(value)} ({type(value).__name__}); give a number (of a tensor: tensor.item())"
        )
    number = float(value)
    if not math.isfinite(number):
        raise InvalidInputError(f"statistic {name} is {number}; a log holds finite numbers only")
    return number


def checked_names(statistics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of statistics, in their order.

    Parameters
    ----------
    statistics : mapping of str to value
        Statistics of the first row.

    Raises
    ------
    InvalidInputError
        A name is no plain identifier, or is that of another column.

    Examples
    --------
    >>> checked_names({"loss_tokens": 512})
    ('loss_tokens',)
    """
    stems: set[str] = set()
    for name in statistics:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{_shown(name)} cannot name a statistic; use letters, digits and _, at most 100, no digit first"
            )
        stem = name.removesuffix("_ns")
        if stem in _RESERVED or stem in stems:
            raise InvalidInputError(f"a statistic cannot be called {name!r}: another column of the log has that name")
        stems.add(stem)
    return tuple(statistics)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


Row = tuple[int | float, ...]
#: Names of the columns, each with whether it holds whole numbers.
Columns = tuple[tuple[str, bool], ...]


class CsvRows:
    """A CSV file: its first rows replace an older file; later rows are appended, whole lines at a time.

    Writing the same rows again at the same position changes nothing, so that an interrupted write can be repeated.

    Parameters
    ----------
    path : Path
        File to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, columns: Columns, rows: Sequence[Row], at: int) -> int:
        """Write rows at the byte `at`, 0 for the first, and return the byte after them."""
        text = "".join(f"{','.join(map(repr, row))}\n" for row in rows).encode()
        if at == 0:
            text = ",".join(name for name, _ in columns).encode() + b"\n" + text
            with replaced_file(self._path) as stream:
                stream.write(text)
        else:
            self._append(text, at)
        return at + len(text)

    def _append(self, text: bytes, at: int) -> None:
        try:
            with self._path.open("r+b", buffering=0) as stream:
                try:
                    if os.pwrite(stream.fileno(), text, at) != len(text):
                        raise OSError(0, "the disk took only a part")
                except OSError:
                    stream.truncate(at)  # removes a partial line
                    raise
        except OSError as error:
            raise InvalidInputError(f"{self._path}: cannot be written ({error.strerror})") from error

    def finish(self, columns: Columns) -> None:
        """Do nothing: all rows are written."""


class ParquetRows:
    """A Parquet file: rows stay in memory, 8 bytes a value, until `finish`.

    Parameters
    ----------
    path : Path
        File to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: list[array[int] | array[float]] = []

    def write(self, columns: Columns, rows: Sequence[Row], at: int) -> int:
        """Keep rows from the row number `at` on, and return the row number after them."""
        if not self._values:
            self._values = [array("q" if is_whole else "d") for _, is_whole in columns]
        for values, new in zip(self._values, zip(*rows, strict=True), strict=bool(rows)):
            values[at:] = array(values.typecode, new)
        return at + len(rows)

    def finish(self, columns: Columns) -> None:
        """Write the file."""
        pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
        types = [pa.int64() if is_whole else pa.float64() for _, is_whole in columns]
        arrays = [pa.array(held, type=type_) for held, type_ in zip(self._values, types, strict=True)]
        sink = io.BytesIO()
        pq.write_table(pa.table(arrays, names=[name for name, _ in columns]), sink)
        with replaced_file(self._path) as stream:
            stream.write(sink.getbuffer())


def row_file(path: Path) -> CsvRows | ParquetRows:
    """Return the writer of a log, by the suffix of its path; nothing is written yet.

    Parameters
    ----------
    path : Path
        A ``.csv`` or ``.parquet`` file, in a folder that exists.

    Raises
    ------
    InvalidInputError, NotFoundError
        The suffix is neither .csv nor .parquet, or the folder is missing or may not be written.

    Examples
    --------
    >>> type(row_file(Path("log.csv"))).__name__
    'CsvRows'
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise InvalidInputError(f"{path}: a log is a .csv or a .parquet file; change its name")
    if not path.parent.is_dir():
        raise NotFoundError(f"{path}: its folder does not exist; make it first")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{path}: cannot be written (it is a folder, or lies in one that is read-only)")
    return CsvRows(path) if suffix == ".csv" else ParquetRows(path)


_NO_STATISTICS: Mapping[str, float] = MappingProxyType({})


class IterationLog:
    """Write one row an iteration to a CSV or Parquet file that `seqpoint select` and `read_log` read.

    The columns are ``iteration`` (0, 1, 2, ...), ``sequence_length``, ``batch`` if it is given, ``duration_ns``, and
    the statistics that are added. The first row decides which columns there are.

    A CSV file is written every `flush_every` iterations and at the end, whole lines at a time: a process that is
    killed leaves all but the last rows. A Parquet file is written only at the end. An older file stays until the first
    rows are written. An iteration that raises is counted but not logged: its number is left out, and everything before
    it is kept. In a job of several processes, each needs a file of its own.

    Parameters
    ----------
    path : path
        A ``.csv`` or ``.parquet`` file.
    synchronize : callable, optional
        Function that waits for the device, such as ``torch.cuda.synchronize``; it is called before the clock is read.
        Without it, the duration is that of the host, since a GPU works on after the call that launched its kernels.
    clock : callable
        Returns the time in ns.
    flush_every : int
        Rows between two writes of a CSV file; choose a small number if iterations are long.

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
        self._flush_every = checked_integer(flush_every, "flush_every", 1)
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
        """Return a context that times an iteration and logs it.

        Parameters
        ----------
        sequence_length : int
            Sequence length in tokens, at least 1.
        batch : int, optional
            Sequences of the batch; given in every iteration or in none.

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
            Sequence length in tokens, at least 1.
        duration_ns : int
            Duration in ns, at least 0.
        batch : int, optional
            Sequences of the batch; given in every iteration or in none.
        statistics : mapping of str to float
            Other measurements: finite numbers, with the same names in every iteration.

        Raises
        ------
        InvalidInputError
            A value is not as above, a name is taken, an iteration is open, the log is closed, or the file cannot
            be written.
        """
        self._row(self._begin(), (sequence_length, batch, duration_ns), statistics)

    def flush(self) -> None:
        """Write the rows that a CSV file does not hold yet."""
        if self._rows:
            after = self._file.write(self._columns(), self._rows, self._written)
            # An interrupt cannot come between these two lines. After an earlier one, the same rows are written again
            # at the same position.
            self._written = after
            self._rows = []

    def close(self) -> None:
        """Write the remaining rows and complete the file; closing again does nothing."""
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
        self._next += 1
        return self._next - 1

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
        row: Row = (number, checked_integer(length, "sequence_length", 1))
        if batch is not None:
            row += (checked_integer(batch, "batch", 0),)
        row += (checked_integer(duration_ns, "duration_ns", 0),)
        if names:
            row += tuple([checked_number(statistics[name], name) for name in names])
        self._names, self._has_batch = names, batch is not None
        self._plain = self._has_batch and not names
        self._rows.append(row)
        if len(self._rows) >= self._flush_every:
            self.flush()

    def _agreed(self, number: int, has_batch: bool, statistics: Mapping[str, float]) -> tuple[str, ...]:
        """Return the names of the statistics in the order of the columns, which the first row decides."""
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
        whole_numbers = ("iteration", "sequence_length", *(["batch"] if self._has_batch else []), "duration_ns")
        return (*((name, True) for name in whole_numbers), *((name, False) for name in self._names or ()))


class TimedIteration:
    """The context of an iteration that `IterationLog.iteration` returns.

    Parameters
    ----------
    log : IterationLog
        Log that gets the row.
    sequence_length : int
        Sequence length in tokens.
    batch : int, optional
        Sequences of the batch.
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
        """Set a statistic of this iteration."""
        if self._statistics is None:
            self._statistics = {}
        self._statistics[name] = value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        log = self._log
        log._inside = False
        if kind is not None:
            return
        if log._synchronize is not None:
            log._synchronize()
        duration_ns = log._clock() - self._start_ns
        length, batch = self._length, self._batch
        # The common case in few calls; all others, and the errors, in `IterationLog._row`.
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


class LoggedSteps(Protocol):
    """A counter of iterations: an `IterationLog` or a `PointProfiler`."""

    def iteration(self, *, sequence_length: int, batch: int | None = None) -> AbstractContextManager[Any]:
        """Return the context of one iteration."""


class LightningHooks:
    """Lightning's hooks of training, each with Lightning's arguments.

    For a loop or trainer that calls hooks of this shape; for Lightning's own ``Trainer`` use
    `lightning_callback`. A batch that begins and does not end (skipped, or it raised) is counted but not logged.

    Parameters
    ----------
    steps : IterationLog or PointProfiler
        Log or profiler, which is open; the hooks do not close it.
    length_of : callable
        Returns the sequence length of a batch in tokens.
    batch_of : callable, optional
        Returns the number of sequences of a batch.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder, IterationLog(f"{folder}/log.csv") as log:
    ...     hooks = LightningHooks(log, length_of=len)
    ...     hooks.on_train_batch_start(None, None, [5, 2, 9], 0)
    ...     hooks.on_train_batch_end(None, None, None, [5, 2, 9], 0)
    ...     hooks.on_train_epoch_end(None, None)
    ...     print((Path(folder) / "log.csv").read_text())
    iteration,sequence_length,duration_ns
    0,3,...
    """

    def __init__(
        self, steps: LoggedSteps, length_of: Callable[[Any], int], batch_of: Callable[[Any], int] | None = None
    ) -> None:
        self._steps = steps
        self._length_of = length_of
        self._batch_of = batch_of
        self._open: AbstractContextManager[Any] | None = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin an iteration."""
        self._abandon()
        size = None if self._batch_of is None else self._batch_of(batch)
        opened = self._steps.iteration(sequence_length=self._length_of(batch), batch=size)
        opened.__enter__()
        self._open = opened

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the iteration."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Write the rows that are logged so far."""
        self._abandon()
        if isinstance(self._steps, IterationLog):
            self._steps.flush()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Abandon an iteration that is open."""
        self._abandon()

    def _abandon(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(GeneratorExit, GeneratorExit(), None)


def lightning_callback(
    steps: LoggedSteps, length_of: Callable[[Any], int], batch_of: Callable[[Any], int] | None = None
) -> Any:
    """Return a ``Callback`` for ``Trainer(callbacks=[...])`` of ``lightning`` or ``pytorch_lightning``.

    ::

        with IterationLog("log.csv") as log:
            callback = lightning_callback(log, length_of=lambda batch: batch["input_ids"].shape[1])
            Trainer(max_epochs=1, callbacks=[callback]).fit(model, loader)

    Lightning calls every hook of every callback, so a callback has to be a subclass of its own class, which is made
    here. An iteration is the time between Lightning's hooks, without the loading of data.

    Parameters
    ----------
    steps, length_of, batch_of
        As for `LightningHooks`.

    Raises
    ------
    DependencyError
        Lightning is not installed.
    """
    hooks = LightningHooks(steps, length_of, batch_of)
    members = {name: getattr(hooks, name) for name in vars(LightningHooks) if name.startswith("on_")}
    for package in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            return type("SeqPointCallback", (import_module(package).Callback,), members)()
    raise DependencyError("lightning_callback needs Lightning; run: pip install lightning")
