"""Profiling of the chosen iterations of a training loop with `torch.profiler`.

`profile_at` counts the iterations of a run and records the chosen ones; adjacent iterations share a file.
`read_points` reads the chosen iterations: a list of numbers, or the output of ``seqpoint select --json``. A
`ProfiledWindow` is one recording, which is prepared some iterations ahead.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from profilers.errors import DependencyError, InvalidInputError, NotFoundError
from profilers.record.log import checked_integer

#: Most bytes of a selection, which has a few points of 150 bytes each.
_MAX_BYTES = 1 << 26
#: Readers of step annotations read up to nine digits.
_MAX_ITERATION = 10**9 - 1


def read_points(points: Iterable[int] | str | PathLike[str]) -> dict[int, int | None]:
    """Return the chosen iterations in ascending order, each with its length or None.

    Parameters
    ----------
    points : iterable of int, or path
        Numbers of iterations, from 0, in any order; or a file with the output of ``seqpoint select --json``.

    Raises
    ------
    NotFoundError, InvalidInputError
        The file is missing or no selection, or a number cannot be an iteration.

    Examples
    --------
    >>> read_points([7, 3, 7])
    {3: None, 7: None}
    """
    if isinstance(points, str | PathLike):
        chosen = _points_in(Path(points))
    elif isinstance(points, Iterable) and not isinstance(points, bytes):
        chosen = [(_iteration_number(point, "points"), None) for point in points]
    else:
        raise InvalidInputError(f"points are numbers of iterations or a file, not a {type(points).__name__}")
    if not chosen:
        raise InvalidInputError("no iteration is chosen; give at least one point")
    return dict(sorted(chosen, key=lambda point: point[0]))


def _iteration_number(value: Any, where: str) -> int:
    number = checked_integer(value, f"{where}: iteration", 0)
    if number > _MAX_ITERATION:
        raise InvalidInputError(f"{where}: iteration is {number}; it must be at most {_MAX_ITERATION}")
    return number


def _points_in(path: Path) -> list[tuple[int, int | None]]:
    if not path.is_file():
        raise NotFoundError(f"{path}: no such selection; write one with `seqpoint select LOG --json > {path}`")
    lengths: dict[int, int | None] = {}
    for position, row in enumerate(_point_rows(path)):
        where = f"{path}: points[{position}]"
        if not isinstance(row, dict) or "iteration" not in row:
            raise InvalidInputError(f"{where}: has no iteration; give the output of `seqpoint select --json`")
        number, length = _iteration_number(row["iteration"], where), row.get("sequence_length")
        length = None if length is None else checked_integer(length, f"{where}: sequence_length", 1)
        if lengths.setdefault(number, length) != length:
            raise InvalidInputError(f"{where}: gives iteration {number} a second length, {length}")
    return list(lengths.items())


def _point_rows(path: Path) -> list[Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidInputError(f"{path}: is larger than {_MAX_BYTES} bytes, which no selection is")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: not the output of `seqpoint select --json` ({error})") from error
    rows = content.get("points") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise InvalidInputError(f"{path}: has no list of points; give the output of `seqpoint select --json`")
    return rows


#: Keyword arguments of ``torch.profiler.profile``.
Settings = dict[str, Any]


def load_torch() -> Any:
    """Return the module ``torch``.

    Raises
    ------
    DependencyError
        PyTorch is not installed.
    """
    try:
        return import_module("torch")
    except ImportError as error:
        raise DependencyError("profile_at needs PyTorch; run: pip install 'seqpoint[torch]'") from error


def settings(torch: Any, activities: Iterable[Any] | None, record_shapes: bool) -> Settings:
    """Return the arguments of ``torch.profiler.profile`` for each recording.

    Parameters
    ----------
    torch : module
        The module ``torch``.
    activities : iterable of ProfilerActivity, optional
        Activities to record; by default the CPU, and CUDA if there is a GPU.
    record_shapes : bool
        Whether to record the shapes of operators.

    Raises
    ------
    InvalidInputError
        `activities` is empty.
    """
    kinds = torch.profiler.ProfilerActivity
    default = {kinds.CPU, kinds.CUDA} if torch.cuda.is_available() else {kinds.CPU}
    chosen = default if activities is None else list(activities)
    if not chosen:
        raise InvalidInputError("activities is empty; leave it out, or name at least ProfilerActivity.CPU")
    return {"activities": chosen, "record_shapes": record_shapes}


class ProfiledWindow:
    """A recording that is prepared or running.

    Each recording has a profiler of its own, without a schedule: torch's schedules are periodic, and number steps from
    0.

    Parameters
    ----------
    torch : module
        The module ``torch``.
    made_with : dict
        Keyword arguments of ``torch.profiler.profile``.

    Raises
    ------
    InvalidInputError
        Another torch profiler runs.
    """

    def __init__(self, torch: Any, made_with: Settings) -> None:
        if torch.autograd._profiler_enabled():  # torch would end that profiler silently
            raise InvalidInputError("another torch profiler is recording; end it before profile_at")
        self._profile = torch.profiler.profile(**made_with)
        self.recording = False
        self._profile.prepare_trace()

    def start(self) -> None:
        """Begin to record, if that has not happened."""
        if not self.recording:
            self._profile.start_trace()
            self.recording = True

    def drop(self) -> None:
        """End the recording without a file."""
        self.start()  # torch ends only what was started
        self._profile.stop_trace()

    def write(self, path: Path) -> None:
        """End the recording, wait for the GPU, and write the trace to `path`.

        Parameters
        ----------
        path : Path
            File to write; it appears only when it is complete.

        Raises
        ------
        InvalidInputError
            The folder cannot be written.
        """
        self._profile.stop_trace()
        hidden = path.with_name(f".{path.name}")  # ingest skips hidden files; torch packs names in .gz
        try:
            self._profile.export_chrome_trace(str(hidden))
            hidden.replace(path)
        except OSError as error:
            raise InvalidInputError(f"{path}: cannot be written ({error.strerror})") from error
        finally:
            hidden.unlink(missing_ok=True)


@contextmanager
def profile_at(
    points: Iterable[int] | str | PathLike[str],
    directory: str | PathLike[str],
    *,
    warmup: int = 1,
    activities: Iterable[Any] | None = None,
    record_shapes: bool = True,
) -> Iterator["PointProfiler"]:
    """Profile only the chosen iterations of a run, into files that `seqpoint ingest DIRECTORY` reads.

    ::

        with profile_at("points.json", "traces") as profiler:
            for batch in loader:
                with profiler.iteration(sequence_length=batch.shape[1], batch=batch.shape[0]):
                    train(batch)
                if profiler.done:
                    break

    Iterations are counted from 0, as `IterationLog` counts them, and keep their numbers (``ProfilerStep#N``) and
    lengths in the trace. Adjacent iterations share a recording and a file, such as ``iterations7-8.pt.trace.json.gz``,
    so that the end of the first does not disturb the second.

    The profiler is prepared up to `warmup` iterations ahead, and records nothing of these. There are fewer at the
    beginning of the run and after a recording. Iteration 0 has none, and the first use of a profiler in a process takes
    time of that iteration. In a job of ``torch.distributed``, every process calls this with the same points; its rank
    is in the names of its files.

    Parameters
    ----------
    points : iterable of int, or path
        Numbers of iterations, in any order, or a file with the output of ``seqpoint select LOG --json``. With a file,
        an iteration must have the length that was selected: another length means another order of the data.
    directory : path
        Folder of the files; it is made if it is missing.
    warmup : int
        Iterations before a chosen iteration at which its recording is prepared.
    activities : iterable of ProfilerActivity, optional
        Activities to record; by default the CPU, and CUDA if there is a GPU.
    record_shapes : bool
        Whether to record the shapes of operators.

    Yields
    ------
    PointProfiler
        Gives the context of each iteration.

    Raises
    ------
    DependencyError
        PyTorch is not installed.
    NotFoundError, InvalidInputError
        The points cannot be read; the directory holds recordings already or cannot be written; another profiler
        runs; an iteration has another length than was selected. At the end, after every file is written: chosen
        iterations were never reached, and the message names them.
    """
    chosen, ahead = read_points(points), checked_integer(warmup, "warmup", 0)
    torch = load_torch()
    made_with = settings(torch, activities, record_shapes)
    distributed = torch.distributed
    has_rank = distributed.is_available() and distributed.is_initialized()
    prefix = f"rank{distributed.get_rank()}_iteration" if has_rank else "iteration"
    stem = _make_folder(Path(directory), prefix) / prefix
    profiler = PointProfiler(chosen, stem, warmup=ahead, made_with=made_with)
    try:
        yield profiler
    except BaseException:
        profiler._end()
        raise
    profiler._end()
    if missed := [number for number in chosen if number not in profiler.recorded]:
        raise InvalidInputError(
            f"{directory}: lacks the chosen iterations {missed[:8]}{' ...' if len(missed) > 8 else ''}: "
            f"the run had {profiler.reached}, or they raised; the others are written"
        )


def _make_folder(directory: Path, prefix: str) -> Path:
    """Make the folder, or check that it has no recordings of this process, and return it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        old = sorted(file.name for file in directory.glob(f"{prefix}*.pt.trace.json.gz"))
    except OSError as error:
        raise InvalidInputError(f"{directory}: cannot be written ({error.strerror})") from error
    if old:
        raise InvalidInputError(f"{directory}: holds {old[0]} already; remove it, or name another directory")
    return directory


class PointProfiler:
    """The profiler of `profile_at`: it counts iterations and records the chosen ones.

    Parameters
    ----------
    chosen : dict of int to int or None
        Chosen iterations in ascending order, each with its length or None.
    stem : Path
        Folder and prefix of the names of its files.
    warmup : int
        Iterations before a chosen iteration at which its recording is prepared.
    made_with : dict
        Keyword arguments of ``torch.profiler.profile``.

    Attributes
    ----------
    reached : int
        Number of iterations so far.
    recorded : tuple of int
        Iterations whose trace is written.
    files : tuple of Path
        Files that are written.
    """

    def __init__(self, chosen: dict[int, int | None], stem: Path, *, warmup: int, made_with: Settings) -> None:
        self._chosen = chosen
        self._left = list(reversed(chosen))
        self._stem = stem
        self._warmup = warmup
        self._made_with = made_with
        self._torch = load_torch()
        self._window: ProfiledWindow | None = None
        self._held: list[int] = []
        self._inside = False
        self.reached = 0
        self.recorded: tuple[int, ...] = ()
        self.files: tuple[Path, ...] = ()

    @property
    def done(self) -> bool:
        """Whether every chosen iteration was reached, so that the run may end."""
        return not self._left

    @contextmanager
    def iteration(self, *, sequence_length: int | None = None, batch: int | None = None) -> Iterator[None]:
        """Give the context of an iteration; every iteration of the run needs it, chosen or not.

        An iteration that raises is not recorded, and neither are adjacent iterations before it.

        Parameters
        ----------
        sequence_length : int, optional
            Tokens; written into the trace. Without it `seqpoint ingest --length` must find the length.
        batch : int, optional
            Sequences.

        Raises
        ------
        InvalidInputError
            An iteration is open, another profiler runs, the length is not the one that was selected, or the file
            cannot be written.
        """
        if self._inside:
            raise InvalidInputError("an iteration is open; end it before the next one")
        number, self.reached = self.reached, self.reached + 1
        self._inside = True
        try:
            if number in self._chosen:
                with self._recorded(number, sequence_length, batch):
                    yield
            else:
                # A recording is prepared if a chosen iteration follows soon.
                if self._window is None and self._left and self._left[-1] <= number + self._warmup:
                    self._window = ProfiledWindow(self._torch, self._made_with)
                yield
        finally:
            self._inside = False

    @contextmanager
    def _recorded(self, number: int, length: int | None, batch: int | None) -> Iterator[None]:
        self._left.pop()
        try:
            text = self._annotation(number, length, batch)
            window = self._window = self._window or ProfiledWindow(self._torch, self._made_with)
            window.start()
            mark = self._torch.profiler.record_function
            with mark(f"ProfilerStep#{number}"), mark(text):
                yield
        except BaseException:
            self._held = []
            self._end()
            raise
        self._held.append(number)
        if number + 1 not in self._chosen:
            self._end()

    def _annotation(self, number: int, length: int | None, batch: int | None) -> str:
        """Return the text of the annotation, from which ingest reads the length and the batch."""
        length = None if length is None else checked_integer(length, "sequence_length", 1)
        selected = self._chosen[number]
        if length is not None and selected is not None and length != selected:
            raise InvalidInputError(
                f"iteration {number} has the length {length}, but {selected} when it was selected; "
                "use the same order of the same data (seed, sampler, batch size)"
            )
        length_text = "" if length is None else f" sequence_length={length}"
        return f"iteration{length_text}" + ("" if batch is None else f" batch={checked_integer(batch, 'batch', 0)}")

    def _end(self) -> None:
        """End the recording: write one that holds iterations, drop one that was only prepared."""
        window, held = self._window, tuple(self._held)
        self._window, self._held = None, []
        if window is not None and held:
            span = f"{held[0]}" if len(held) == 1 else f"s{held[0]}-{held[-1]}"
            path = self._stem.with_name(f"{self._stem.name}{span}.pt.trace.json.gz")
            window.write(path)
            self.recorded += held
            self.files += (path,)
        elif window is not None:
            window.drop()
