"""Named baselines: the runs that later runs are compared with, kept in a folder.

A baseline is a folder ``FOLDER/NAME`` with a trace for each run, ``run1.trace`` and so on.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import replace_folder
from profilers.trace.store import is_trace, save_trace

if TYPE_CHECKING:
    from profilers.trace.trace import Trace

#: Folder of the baselines of a project, from its root.
BASELINES = ".seqpoint/baselines"
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}", re.ASCII)


def save_baseline(name: str, runs: "Iterable[Trace]", folder: str | PathLike[str] = BASELINES) -> Path:
    """Keep runs as a baseline, which replaces an older one of its name as a whole.

    Parameters
    ----------
    name : str
        Name of the baseline: letters, digits, ``_``, ``-`` and ``.``.
    runs : iterable of Trace
        The runs; one at a time is in memory.
    folder : path
        Folder of the baselines, which is made if need be.

    Raises
    ------
    InvalidInputError
        The name has other characters, or the folder cannot be written or holds something else of that name.
    """
    target = _path(name, folder)
    if target.exists() and not _runs(target):
        raise InvalidInputError(f"{target}: exists and is no baseline; choose another name")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    except OSError as error:
        raise InvalidInputError(f"{target}: cannot be written ({error.strerror})") from error
    try:
        new = scratch / "new"
        new.mkdir()
        for number, run in enumerate(runs, 1):
            save_trace(run, new / f"run{number}.trace")
        replace_folder(new, target, scratch / "old")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def baseline_runs(name: str, folder: str | PathLike[str] = BASELINES) -> list[Path]:
    """Return the traces of a baseline, in the order of its runs.

    Raises
    ------
    InvalidInputError
        The name has other characters than a baseline can have.
    NotFoundError
        There is no such baseline; the message lists those that there are.
    """
    target = _path(name, folder)
    if runs := _runs(target):
        return runs
    known = sorted(each.name for each in target.parent.glob("[!.]*") if _runs(each))
    listed = f"there are {', '.join(known[:10])}" if known else "there is none"
    raise NotFoundError(f"{target}: no such baseline ({listed}); make it: seqpoint compare RUN --save-baseline {name}")


def _path(name: str, folder: str | PathLike[str]) -> Path:
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError(f"{name!r} is no name of a baseline; take letters, digits, _, - and .")
    return Path(folder) / name


def _runs(folder: Path) -> list[Path]:
    runs = [(len(each.name), each.name, each) for each in folder.glob("run*.trace") if is_trace(each)]
    return [each for _, _, each in sorted(runs)]
