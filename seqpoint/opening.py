"""How paths become a trace: files, ``.trace`` folders, folders of different ranks, and jobs of many ranks.

A job of more than 32 ranks is surveyed (`seqpoint.rank_survey`), and commands read the ranks that stand for all. Files
of so many ranks, or folders of some ranks each, first become one temporary folder.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profilers.errors import InvalidInputError
from profilers.files import children, expanded_paths
from profilers.trace.store import is_trace, read_meta, trace_folders
from profilers.trace.trace import Trace

if TYPE_CHECKING:
    from profilers.ingest.pipeline import IngestOptions, Summary
    from seqpoint.rank_survey import RankSurvey

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
#: A trace of more ranks is surveyed, and other commands read those that stand for all.
MANY_RANKS = 32
#: Most characters of a range of ranks.
_DIGITS = 13
#: Most ranks of a range.
_MOST_RANKS = 1 << 20


def ingest_paths(
    paths: Paths, output: str | PathLike[str], options: "IngestOptions | None", executor: Executor | None
) -> "Summary":
    """Write the ``.trace`` folder of files, or of folders of different ranks; many ranks are surveyed.

    Raises
    ------
    SeqPointError
        A file cannot be read, or the folder cannot be written.
    """
    from profilers.ingest.pipeline import IngestOptions, Summary, ingest

    files, options = expanded_paths(paths), options or IngestOptions()
    if len(folders := trace_folders(files)) > 1:
        from profilers.writers.slicing import merge_folders

        joined, rows = merge_folders(folders, output)
        result = Summary(Path(output), joined.meta, rows, 0)
    else:
        result = ingest(files, output, options, executor=executor)
    if len(result.meta.ranks) > MANY_RANKS:
        survey(output, executor=executor, skip_damaged=options.skip_damaged, progress=options.progress)
    return result


def survey(
    trace: Paths,
    *,
    executor: Executor | None = None,
    skip_damaged: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> "RankSurvey":
    """Compare the ranks of a job: their spread, slow cards, nodes, links and hosts, and ranks that stand for all.

    Parameters
    ----------
    trace : path or sequence of paths
        A ``.trace`` folder, of any number of ranks, or several of different ranks.
    executor : Executor, optional
        Runs the workers, as for `ingest`. What they find is kept in the folder.
    skip_damaged : bool
        Leave out damaged files or ranks and name them, instead of an error.
    progress : callable, optional
        Called with (ranks done, ranks in all, what).

    Raises
    ------
    SeqPointError
        The trace cannot be read; the message names the file.
    """
    from seqpoint.rank_survey import survey as run

    return run(
        trace_folder(trace, executor, skip_damaged), executor=executor, skip_damaged=skip_damaged, progress=progress
    )


def surveyed(
    trace: "Trace | RankSurvey | Paths", *, executor: Executor | None = None, **options: Any
) -> "RankSurvey | None":
    """Return the survey of the path of a job of more than 32 ranks; None for a trace, and for fewer ranks.

    Parameters
    ----------
    trace : Trace, RankSurvey, path or sequence of paths
        The trace, or its survey, which is returned.
    executor, **options
        As `survey` takes them.

    Raises
    ------
    SeqPointError
        The trace cannot be read.
    """
    if not isinstance(trace, str | PathLike | Sequence):
        return None if isinstance(trace, Trace) else trace
    folder = many_ranks(trace, executor=executor, skip_damaged=options.get("skip_damaged", False))
    return None if folder is None else survey(folder, executor=executor, **options)


def many_ranks(trace: Paths, *, executor: Executor | None = None, skip_damaged: bool = False) -> Path | None:
    """Return the ``.trace`` folder of a job of more than 32 ranks, a temporary one of files; None for fewer.

    The parameters are those of `survey`.

    Raises
    ------
    SeqPointError
        The trace cannot be read.
    """
    files = expanded_paths(trace)
    if folders := trace_folders(files):
        count = sum(len(read_meta(folder).ranks) for folder in folders)
    else:
        count = sum(sum(child.is_file() for child in children(file)) or 1 for file in files)
    if count <= MANY_RANKS:
        return None
    folder = trace_folder(trace, executor, skip_damaged)  # many files may be of few ranks
    return folder if len(read_meta(folder).ranks) > MANY_RANKS else None


#: What was ingested into temporary folders of this process, by the files.
_TEMPORARY: "dict[tuple[Path, ...], Summary]" = {}


def trace_folder(trace: Paths, executor: Executor | None = None, skip_damaged: bool = False) -> Path:
    """Return a ``.trace`` folder: the one that is named, or a temporary one, removed as the process ends.

    Raises
    ------
    SeqPointError
        The files cannot be read.
    """
    files = expanded_paths(trace)
    if len(files) == 1 and is_trace(files[0]):
        return files[0]
    if (key := tuple(files)) not in _TEMPORARY:
        from profilers.ingest.pipeline import IngestOptions

        options = IngestOptions(skip_damaged=skip_damaged)
        folder = tempfile.mkdtemp(prefix="seqpoint-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _TEMPORARY[key] = ingest_paths(files, Path(folder) / "job.trace", options, executor)
    return _TEMPORARY[key].path


def temporary_ingest(trace: Paths) -> "Summary | None":
    """Return what files were ingested into, if this process has needed a temporary ``.trace`` folder of them."""
    return _TEMPORARY.get(tuple(expanded_paths(trace)))


def ready(trace: Paths) -> Paths:
    """Return the temporary ``.trace`` folder that files were ingested into, or the paths themselves."""
    ingested = temporary_ingest(trace)
    return trace if ingested is None else ingested.path


def rank_numbers(text: str) -> list[int]:
    """Return the ranks of a list.

    Raises
    ------
    InvalidInputError
        The text is no list of ranks.

    Examples
    --------
    >>> rank_numbers("0,8,16-18")
    [0, 8, 16, 17, 18]
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        is_range = first.isdecimal() and (last or first).isdecimal() and len(part) <= _DIGITS
        if not is_range or not 0 <= int(last or first) - int(first) < _MOST_RANKS:
            raise InvalidInputError(f"ranks {text!r}: write all, or numbers such as 0,8,16-23")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
