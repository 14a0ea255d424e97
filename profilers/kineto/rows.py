"""From Kineto events to rows of the kinds of event; nothing is linked yet."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from profilers.kineto.grids import Geometry, workgroups
from profilers.kineto.numbers import TIMES_NS, nanoseconds, plain_text, real, whole
from profilers.schema import OWN_RANK

__all__ = ["Rows"]

Event = dict[str, Any]

#: Category, in lower case, to kind. Every other category with a duration becomes a range.
_KIND_OF: Mapping[str, str] = {
    "cpu_op": "ops",
    "operator": "ops",
    "kernel": "kernels",
    "gpu_memcpy": "copies",
    "memcpy": "copies",
    "gpu_memset": "copies",
    "memset": "copies",
    "cuda_runtime": "launches",
    "cuda_driver": "launches",
    "runtime": "launches",
    "mtia_runtime": "launches",
    "xpu_runtime": "launches",
    "xpu_driver": "launches",
    "privateuse1_runtime": "launches",
    "privateuse1_driver": "launches",
    "cuda_sync": "syncs",
}
_FLOW = frozenset("stfMNDO")
_INSTANT = frozenset("iIRn")


def _json(value: Any) -> str | None:
    """Return `value` as JSON; None where it is missing, or nested deeper than Python's stack."""
    try:
        return None if value is None else _ENCODER.encode(value)
    except RecursionError:
        return None


def _plain(value: Any) -> float | str:
    number = real(value)
    return str(value) if number is None else number


_ENCODER = json.JSONEncoder(default=_plain, separators=(",", ":"))

# Column, the argument's keys (the first present counts), and how its value is read.
_Spec = tuple[str, tuple[str, ...], Callable[[Any], Any]]
_EXTERNAL: _Spec = ("external_id", ("External id", "external id"), whole)
_CORRELATION: _Spec = ("correlation", ("correlation",), whole)
_RECORD: _Spec = ("record_function_id", ("Record function id",), whole)
_INDEX: _Spec = ("event_index", ("Ev Idx",), whole)
_PLACE: tuple[_Spec, ...] = (("device", ("device",), whole), ("stream", ("stream",), whole))
_ARGUMENTS: Mapping[str, tuple[_Spec, ...]] = {
    "ops": (
        _EXTERNAL,
        ("sequence_number", ("Sequence number",), whole),
        ("forward_thread", ("Fwd thread id",), whole),
        _RECORD,
        _INDEX,
        ("shapes", ("Input Dims", "Input dims"), _json),
        ("dtypes", ("Input type",), _json),
        ("strides", ("Input Strides",), _json),
        ("concrete_inputs", ("Concrete Inputs",), _json),
    ),
    "launches": (_EXTERNAL, _CORRELATION),
    "kernels": (
        *_PLACE,
        ("queue", ("queue",), whole),
        _EXTERNAL,
        _CORRELATION,
        ("registers", ("registers per thread",), whole),
        ("lds_bytes", ("shared memory",), whole),
        ("occupancy", ("est. achieved occupancy %",), real),
        ("graph_node", ("graph node id",), whole),
    ),
    "copies": (*_PLACE, _EXTERNAL, _CORRELATION, ("bytes", ("bytes",), whole)),
    "syncs": (
        *_PLACE,
        _CORRELATION,
        ("wait_on_stream", ("wait_on_stream",), whole),
        ("event", ("wait_on_cuda_event_id",), whole),
        ("event_correlation", ("wait_on_cuda_event_record_corr_id",), whole),
    ),
    "ranges": (
        *_PLACE,
        _EXTERNAL,
        _RECORD,
        _INDEX,
        ("python_id", ("Python id",), whole),
        ("python_parent_id", ("Python parent id",), whole),
        ("python_module_id", ("Python module id",), whole),
    ),
    "counters": (("value", ("Bytes", "value"), real),),
}
_HOST_KINDS = frozenset({"ops", "launches", "ranges", "counters"})
#: Columns that stand in the schema as int32.
_NARROW = ("device", "registers")


class Rows:
    """Collects events as columns and turns them into tables.

    Events that name no rank get `OWN_RANK`.
    """

    def __init__(self) -> None:
        self._columns: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._kernel_geometry: list[Geometry | None] = []
        self._launch_geometry: dict[tuple[int, int | None], Geometry | str] = {}
        self.counts: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Keep one event, or count why it is not kept."""
        phase = plain_text(event.get("ph", "X"))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        kind = self._kind(event, phase, args)
        if kind is None:
            return
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is not None and duration is not None and start + duration not in TIMES_NS:
            duration = None
        if start is None or (start == 0 and duration == 0):
            self.counts["dropped_no_time"] += 1
        elif duration is not None and duration < 0:
            self.counts["dropped_negative"] += 1
        else:
            if duration is None and kind != "counters":
                self.counts["missing_duration"] += 1
            self._append(kind, event, args, (start, duration))

    def _kind(self, event: Event, phase: str, args: Event) -> str | None:
        category = plain_text(event.get("cat")).lower()
        if phase == "C" or (phase in _INSTANT and args):
            return "counters"
        if phase in _INSTANT or category == "trace" or phase == "E":
            self.counts["skipped_marker"] += 1
            return None
        if phase in _FLOW:
            self.counts["skipped_flow"] += 1
            return None
        return _KIND_OF.get(category, "ranges")

    def _append(self, kind: str, event: Event, args: Event, time: tuple[int, int | None]) -> None:
        columns = self._columns[kind]
        rank = whole(args.get("rank"))
        columns["rank"].append(OWN_RANK if rank is None or not 0 <= rank < 1 << 31 else rank)
        columns["name"].append(plain_text(event.get("name")))
        columns["start_ns"].append(time[0])
        columns["dur_ns"].append(time[1])
        self.counts["kept"] += 1
        if kind in _HOST_KINDS:
            columns["process"].append(whole(event.get("pid")))
            columns["thread"].append(whole(event.get("tid")))
        known = self._arguments(kind, columns, args)
        rest = {k: v for k, v in args.items() if k not in known} or None
        columns["args"].append(_json(rest))
        self.counts["lost_arguments"] += rest is not None and columns["args"][-1] is None
        if (special := _SPECIAL.get(kind)) is not None:
            special(columns, event, args)
        if kind == "kernels":
            self._kernel_geometry.append(Geometry.of(args))
        elif kind == "launches":
            self._note_launch(columns, args)

    def _note_launch(self, columns: dict[str, list[Any]], args: Event) -> None:
        """Remember the call, or its geometry, by which a kernel's grid is understood."""
        name = columns["name"][-1]
        key = (columns["rank"][-1], columns["correlation"][-1])
        geometry = Geometry.of(args, name)
        if geometry is not None or key not in self._launch_geometry:
            self._launch_geometry[key] = name if geometry is None else geometry

    def _arguments(self, kind: str, columns: dict[str, list[Any]], args: Event) -> set[str]:
        """Fill the typed columns of `kind`; return the arguments that they hold without loss."""
        known: set[str] = set()
        for column, keys, read in _ARGUMENTS[kind]:
            key = keys[0] if keys[0] in args else next((k for k in keys[1:] if k in args), None)
            value = None if key is None else read(args[key])
            if value is not None and column in _NARROW and not -(1 << 31) <= value < 1 << 31:
                value = None
            if key is not None and value is not None:
                known.add(key)
            columns[column].append(value)
        return known

    def columns(self) -> Mapping[str, Mapping[str, list[Any]]]:
        """Return what was collected, by kind and column."""
        if self._kernel_geometry:
            kernels = self._columns["kernels"]
            keys = zip(kernels["rank"], kernels["correlation"], strict=True)
            found = [
                _understood(own, self._launch_geometry.get(key))
                for own, key in zip(self._kernel_geometry, keys, strict=True)
            ]
            kernels["workgroups"], kernels["workgroup_size"], repaired = workgroups(found)
            self.counts.update(repaired)
        return self._columns


def _understood(own: Geometry | None, launch: Geometry | str | None) -> Geometry | None:
    """Join what the kernel's row and its launch's row say of the grid."""
    if own is None:
        return launch if isinstance(launch, Geometry) else None
    call = launch.call if isinstance(launch, Geometry) else launch or ""
    return Geometry(own.grid, own.block, call)


def _launch(columns: dict[str, list[Any]], event: Event, _args: Event) -> None:
    columns["api"].append(plain_text(event.get("cat")).lower())


def _copy(columns: dict[str, list[Any]], event: Event, args: Event) -> None:
    columns["direction"].append(_direction(plain_text(event.get("name")), args))


def _direction(name: str, args: Event) -> str:
    if name.startswith("Memset"):
        return "memset"
    words = name.split()
    kind = words[1] if len(words) > 1 and words[0] == "Memcpy" else plain_text(args.get("kind"))
    return kind or "unknown"


def _sync(columns: dict[str, list[Any]], event: Event, args: Event) -> None:
    columns["sync"].append(plain_text(args.get("cuda_sync_kind", event.get("name"))))
    for column in ("stream", "wait_on_stream", "event", "event_correlation"):
        if columns[column][-1] == -1:
            columns[column][-1] = None


def _category(columns: dict[str, list[Any]], event: Event, _args: Event) -> None:
    columns["category"].append(plain_text(event.get("cat")).lower())


_SPECIAL: Mapping[str, Callable[[dict[str, list[Any]], Event, Event], None]] = {
    "launches": _launch,
    "copies": _copy,
    "syncs": _sync,
    "ranges": _category,
    "counters": _category,
}
