"""How paths become a trace: files, ``.trace`` folders, folders of different ranks, and jobs of many ranks.

A job of more than 32 ranks is surveyed (`seqpoint.rank_survey`), and commands read the ranks that stand for all. Files
of so many ranks, or folders of some ranks each, first become one temporary folder.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profilers.errors import InvalidInputError
from profilers.files import expanded_paths, is_folder
from profilers.trace.store import is_trace, load_trace, read_meta, trace_folders
from profilers.trace.trace import Trace

if TYPE_CHECKING:
    from profilers.ingest.pipeline import IngestOptions, Summary

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Progress = Callable[[int, int, str], None]
#: A trace of more ranks is surveyed, and other commands read those that stand for all.
MANY_RANKS = 32
#: Most characters of a range of ranks.
_DIGITS = 13


def open_paths(
    paths: Paths,
    how: Mapping[str, Any],
    joined: Mapping[str, Paths],
    ranks: str | Sequence[int],
    progress: Progress | None,
) -> Trace:
    """Return the trace of files or folders; `seqpoint.front_door.open` tells the parameters.

    Parameters
    ----------
    paths : str, path or sequence of them
        Files, folders, or patterns.
    how : mapping
        ``iterations``, ``length`` and ``classes``.
    joined : mapping
        ``counters``, ``execution_traces`` and ``captures``.
    ranks : str or sequence of int
        Ranks to read.
    progress : callable, optional
        Called with (bytes read, bytes of all files, name of the file).

    Raises
    ------
    SeqPointError
        A file cannot be read, or the options do not fit.
    """
    files = expanded_paths(paths)
    is_plain = how["iterations"] == "auto" and not (how["length"] or how["classes"] or any(joined.values()))
    if is_plain and len(files) == 1 and is_trace(files[0]):
        return load_trace(files[0], ranks=rank_numbers(ranks))
    if ranks != "all":
        raise InvalidInputError(f"{files[0]}: ranks can be chosen of a .trace folder; ingest the files first")
    if is_plain and (folders := trace_folders(files)):
        from profilers.writers.slicing import merge

        return merge([load_trace(folder) for folder in folders])
    from profilers.ingest.pipeline import IngestOptions, collect, open_trace
    from profilers.trace.kernels import read_class_rules

    found = {name: tuple(expanded_paths(each)) if each else () for name, each in joined.items()}
    rules = () if how["classes"] is None else read_class_rules(how["classes"])
    plain = IngestOptions(how["iterations"], how["length"], progress, class_rules=rules)
    options = replace(plain, **found)
    return open_trace(files[0], options) if len(files) == 1 else collect(files, options)


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
    if folders := trace_folders(files):
        from profilers.writers.slicing import merge_folders

        joined, rows = merge_folders(folders, output)
        result = Summary(Path(output), joined.meta, rows, 0)
    else:
        result = ingest(files, output, options, executor=executor)
    if len(result.meta.ranks) > MANY_RANKS:
        from seqpoint.rank_survey import survey

        survey(output, executor=executor, skip_damaged=options.skip_damaged, progress=options.progress)
    return result


def opened(trace: Trace | Paths) -> Trace:
    """Return a trace unchanged, or open the trace of a path; of more than 32 ranks, those that stand for all."""
    if isinstance(trace, Trace):
        return trace
    if folder := many_ranks(trace):
        from seqpoint.rank_survey import survey

        return load_trace(folder, ranks=survey(folder).representatives)
    return open_paths(trace, dict.fromkeys(("length", "classes")) | {"iterations": "auto"}, {}, "all", None)


def many_ranks(trace: Paths) -> Path | None:
    """Return the ``.trace`` folder of a job of more than 32 ranks, a temporary one of files; None for fewer.

    Raises
    ------
    SeqPointError
        The trace cannot be read.
    """
    files = expanded_paths(trace)
    if folders := trace_folders(files):
        count = sum(len(read_meta(folder).ranks) for folder in folders)
    else:
        count = sum(sum(child.is_file() for child in file.iterdir()) if is_folder(file) else 1 for file in files)
    return trace_folder(trace) if count > MANY_RANKS else None


#: Temporary traces of this process, by their files.
_TEMPORARY: dict[tuple[Path, ...], Path] = {}


def trace_folder(trace: Paths, executor: Executor | None = None) -> Path:
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
        folder = tempfile.mkdtemp(prefix="seqpoint-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _TEMPORARY[key] = ingest_paths(files, Path(folder) / "job.trace", None, executor).path
    return _TEMPORARY[key]


def rank_numbers(ranks: str | Sequence[int]) -> list[int] | None:
    """Return the ranks of a list; None for all.

    Raises
    ------
    InvalidInputError
        The text is no list of ranks.

    Examples
    --------
    >>> rank_numbers("0,8,16-18")
    [0, 8, 16, 17, 18]
    """
    if not isinstance(ranks, str):
        return list(ranks)
    if ranks.strip() == "all":
        return None
    numbers: list[int] = []
    for part in ranks.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or len(part) > _DIGITS:
            raise InvalidInputError(f"ranks {ranks!r}: write all, or numbers such as 0,8,16-23")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
