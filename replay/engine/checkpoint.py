"""Runs of the engine in steps, which can be kept in a file and gone on with to the same bits."""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import written_whole
from replay.engine.engine import TASK_EVENT, State, begin, run, state_of, times_of
from replay.engine.sharing import seat_again
from replay.engine.timeline import Timeline
from replay.graph.graph import KernelGraph

_FORMAT = 2
#: By task, what a run changes.
_ROWS = ("ready", "waiting", "start", "end")
#: By active task, what does not follow from the graph.
_SEATS = ("left", "rate", "granted")
#: By device.
_DEVICES = ("count", "pending", "settled", "version", "is_changed")
_SIZES = ("times", "changed", "free", "next")  # in the order of `State.size`
#: Events between two looks at the clock and the keyboard: about a tenth of a second.
_EVENTS = 500_000
Arrays = dict[str, npt.NDArray[Any]]


class Run:
    """The replay of one graph, as far as it has come.

    Parameters
    ----------
    graph : KernelGraph
    """

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self._state: State = state_of(graph)
        begin(self._state)

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to happen."""
        return int(self._state.size[0]) == 0

    @property
    def share(self) -> float:
        """How much of the tasks has ended, 0 to 1."""
        ended = np.count_nonzero(~np.isnan(self._state.end))
        return float(ended / max(len(self.graph.tasks), 1))

    def advance(self, events: int = _EVENTS) -> bool:
        """Let up to `events` events happen; return whether the run is finished."""
        if events < 1:
            raise InvalidInputError(f"{events} events: give one or more")
        return int(run(self._state, events)) == 0

    def finish(self, progress: Callable[[float], None] | None = None) -> Timeline:
        """Run to the end and return the timeline.

        Parameters
        ----------
        progress : callable, optional
            Called with the share of tasks that have ended, a few times a second.

        Raises
        ------
        InvalidInputError
            Tasks wait for each other in a circle; the message names it.
        """
        while not self.advance():
            if progress is not None:
                progress(self.share)
        return Timeline(self.graph, *times_of(self.graph, self._state))

    def save(self, path: Path | str) -> None:
        """Write how far the run has come; a file that is there is replaced as a whole or not at all.

        Raises
        ------
        InvalidInputError
            It cannot be written.
        """
        content = _arrays(self._state)
        content["about"] = np.frombuffer(f"{_FORMAT} {_fingerprint(self.graph)} {_digest(content)}".encode(), np.uint8)
        with written_whole(Path(path)) as stream:
            np.savez(stream, **content)  # type: ignore[arg-type]

    @classmethod
    def load(cls, graph: KernelGraph, path: Path | str) -> "Run":
        """Return the run that `save` wrote, to go on with.

        Raises
        ------
        NotFoundError
            There is no such file.
        InvalidInputError
            It is no checkpoint, is damaged, or is of another graph.
        """
        result = cls(graph)
        found = _read(Path(path), {name: (a.dtype, a.ndim) for name, a in _arrays(result._state).items()}, graph)
        about = bytes(found.pop("about")).decode(errors="replace").split()
        if about[:1] != [str(_FORMAT)] or len(about) != 3:
            raise InvalidInputError(f"{path}: no checkpoint of this version")
        if about[1] != _fingerprint(graph):
            raise InvalidInputError(f"{path}: a checkpoint of another graph")
        if about[2] != _digest(found):
            raise InvalidInputError(f"{path}: damaged; delete it and start again")
        _check(found, result._state, graph, str(path))
        _restore(found, result._state)
        return result


def _arrays(state: State) -> Arrays:
    """Return copies of all that a run changes; of queues, only what is in them."""
    content: Arrays = {f"rows_{name}": getattr(state, name).copy() for name in _ROWS}
    content |= {name: getattr(state, name).copy() for name in (*_DEVICES, "size")}
    content |= {name: getattr(state, name)[:n].copy() for name, n in zip(_SIZES, state.size.tolist(), strict=True)}
    content["codes"] = state.codes[: state.size[0]].copy()
    seats = state.shared.seats[_taken(state)]
    return content | {"active": seats["task"].copy()} | {f"seats_{name}": seats[name].copy() for name in _SEATS}


def _taken(state: State) -> npt.NDArray[np.int64]:
    """Return which seats are taken, by device, in the order of dispatch."""
    before = np.cumsum(state.count) - state.count
    return np.asarray(np.arange(state.count.sum()) + np.repeat(state.base - before, state.count))


def _restore(found: Arrays, state: State) -> None:
    for name in _ROWS:
        getattr(state, name)[:] = found[f"rows_{name}"]
    for name in (*_DEVICES, "size"):
        getattr(state, name)[:] = found[name]
    for name in (*_SIZES, "codes"):
        getattr(state, name)[: len(found[name])] = found[name]
    taken = _taken(state)
    seat_again(state.shared, taken, found["active"])
    for name in _SEATS:
        state.shared.seats[name][taken] = found[f"seats_{name}"]
    state.shared.seats["started"][taken] = ~np.isnan(state.start[found["active"]])


def _read(path: Path, expected: dict[str, tuple[Any, int]], graph: KernelGraph) -> Arrays:
    """Return the arrays of a checkpoint, none larger than the graph allows; nothing in it is run."""
    most = 64 * (4 * len(graph.tasks) + 1000)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            if set(sizes) != {f"{name}.npy" for name in (*expected, "about")} or max(sizes.values()) > most:
                raise InvalidInputError(f"{path}: no checkpoint of this graph")
            found = {
                name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in sizes
            }
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such file") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, RuntimeError) as error:
        raise InvalidInputError(f"{path}: no checkpoint, or a damaged one ({error})") from error
    for name, (dtype, ndim) in expected.items():
        if found[name].dtype != dtype or found[name].ndim != ndim:
            raise InvalidInputError(f"{path}: {name} is of {found[name].dtype}, not of {dtype}")
    return found


def _check(found: Arrays, state: State, graph: KernelGraph, path: str) -> None:
    """Make sure that every number which the compiled code follows leads to a place that there is."""
    n, devices = len(state.end), len(state.base)
    lengths = [
        all(len(found[f"rows_{name}"]) == n for name in _ROWS),
        all(len(found[name]) == devices for name in _DEVICES),
        all(len(found[f"seats_{name}"]) == len(found["active"]) for name in _SEATS),
        len(found["size"]) == len(_SIZES),
        [len(found[name]) for name in _SIZES] == found["size"].tolist(),
        len(found["codes"]) == len(found["times"]) <= len(state.times),
        len(found["next"]) <= n and len(found["changed"]) <= devices and len(found["free"]) == 0,
        bool(np.isfinite(found["times"]).all()),
    ]
    if not all(lengths) or not _is_whole(found, state, graph):
        raise InvalidInputError(f"{path}: its arrays do not fit each other")


def _is_whole(found: Arrays, state: State, graph: KernelGraph) -> bool:
    """Return whether every task is at one place: waiting, to come, active or over; and devices have what is theirs."""
    codes, active, device = found["codes"], found["active"], state.shared.device
    coming = np.concatenate([codes[codes >= TASK_EVENT] - TASK_EVENT, found["next"]])
    of_device = codes[codes < TASK_EVENT]
    over = np.flatnonzero(~np.isnan(found["rows_end"]))
    places = np.sort(np.concatenate([coming, active, over]))
    edges = graph.edges
    since = np.where(edges.from_start, found["rows_start"][edges.source], found["rows_end"][edges.source])
    waiting = np.bincount(edges.target[np.isnan(since)], minlength=len(state.end))
    whole = [
        np.array_equal(found["rows_waiting"], waiting),
        np.array_equal(places, np.flatnonzero(waiting == 0)),
        ((found["changed"] >= 0) & (found["changed"] < len(state.base))).all(),
        ((of_device >= 0) & (of_device & ((1 << int(state.bits)) - 1) < len(state.base))).all(),
        ((found["version"] >= 0) & (found["version"] < 1 << 40)).all(),
        (found["count"] >= 0).all() and int(found["count"].sum()) == len(active),
    ]
    return all(whole) and bool((device[active] == np.repeat(np.arange(len(state.base)), found["count"])).all())


def _digest(content: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(content):
        digest.update(f"{name} {content[name].dtype} {content[name].shape}".encode())
        digest.update(np.ascontiguousarray(content[name]).tobytes())
    return digest.hexdigest()


def _fingerprint(graph: KernelGraph) -> str:
    """Return what tells one graph from another, as far as the engine sees it."""
    columns = {f"task_{f.name}": getattr(graph.tasks, f.name) for f in fields(graph.tasks)}
    columns |= {f"edge_{f.name}": getattr(graph.edges, f.name) for f in fields(graph.edges)}
    return hashlib.sha256((_digest(columns) + repr(graph.policy)).encode()).hexdigest()
