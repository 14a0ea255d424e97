"""A trace as Chakra execution traces, one protobuf file a rank, which ASTRA-sim's feeder reads.

The messages are those of the public schema (mlcommons/chakra, ``et_def.proto``): each is preceded by its length as a
varint, a ``GlobalMetadata`` comes first, then a ``Node`` an event. Times are whole microseconds there, so a duration
is rounded to the nearest and is at least one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from profilers.atomic import written_whole
from profilers.chakra.nodes import COLLECTIVE, COMPUTE, LOAD
from profilers.errors import InvalidInputError
from profilers.trace import Trace

__all__ = ["export_chakra"]

#: The order of ``CollectiveCommType``.
_COMMUNICATION = (
    *("all_reduce", "reduce", "all_gather", "gather"),
    *("scatter", "broadcast", "all_to_all", "reduce_scatter"),
)
_VARINT, _BYTES = 0, 2
_BOOLEAN, _INT64, _UINT64, _STRING = 27, 9, 13, 29

Row = dict[str, Any]


def export_chakra(trace: Trace, path: Path) -> list[Path]:
    """Write one file a rank, ``NAME.RANK.et`` for a `path` of ``NAME.et``; return them.

    Kernels and copies become nodes of the device, each after the one before it on its stream and after the operator
    that launched it; collectives become communication nodes with their type and size; operators become nodes of the
    host, each after the one before it on its thread. A Python loop over events, about 10 us each.

    Raises
    ------
    InvalidInputError
        The trace holds no event, or a file cannot be written.
    """
    if not trace.meta.ranks:
        raise InvalidInputError(f"{path}: the trace holds no rank to export")
    stem = path.with_suffix("") if path.suffix == ".et" else path
    written = []
    for rank in trace.meta.ranks:
        target = stem.with_name(f"{stem.name}.{rank}.et")
        with written_whole(target) as out:
            out.write(_delimited(_text(1, "0.0.4")))
            for node in _nodes(trace, rank):
                out.write(_delimited(node))
        written.append(target)
    return written


def _nodes(trace: Trace, rank: int) -> Iterator[bytes]:
    own = {kind: table.filter(pc.equal(table["rank"], rank)) for kind, table in trace.tables.items()}
    collectives = {row["kernel_id"]: row for row in own["collectives"].to_pylist()}
    kinds = ("ops", "kernels", "copies")
    rows = [(row["start_ns"], row["id"], kind, row) for kind in kinds for row in own[kind].to_pylist()]
    last: dict[tuple[Any, ...], int] = {}
    seen: set[int] = set()
    for _start, number, kind, row in sorted(rows, key=lambda item: item[:2]):
        lane = (kind == "ops", row.get("thread"), row.get("device"), row.get("stream"))
        data = [last[lane]] if lane in last else []
        control = [row["op_id"]] if row.get("op_id") in seen else []
        last[lane] = number
        seen.add(number)
        yield _node(kind, row, (control, data), collectives.get(number))


def _node(kind: str, row: Row, before: tuple[list[int], list[int]], collective: Row | None) -> bytes:
    type_ = COMPUTE if kind != "copies" else LOAD
    attributes = _attribute("is_cpu_op", _BOOLEAN, int(kind == "ops"))
    if collective is not None:
        type_ = COLLECTIVE
        attributes += _communication(collective)
    elif kind == "copies":
        attributes += _attribute("tensor_size", _UINT64, row["bytes"] or 0)
    if row.get("stream") is not None and row["stream"] >= 0:
        attributes += _attribute("stream", _INT64, row["stream"])
    fields = _number(1, row["id"]) + _text(2, row["name"]) + _number(3, type_)
    for field, numbers in zip((4, 5), before, strict=True):
        fields += b"".join(_number(field, number) for number in numbers)
    duration = max(1, round((row["dur_ns"] or 0) / 1000))
    return fields + _number(6, max(0, row["start_ns"] // 1000)) + _number(7, duration) + attributes


def _communication(collective: Row) -> bytes:
    found = _attribute("comm_size", _INT64, collective["bytes"] or 0)
    if collective["collective"] in _COMMUNICATION:
        found += _attribute("comm_type", _INT64, _COMMUNICATION.index(collective["collective"]))
    if collective["group_name"] is not None:
        found += _attribute("pg_name", _STRING, collective["group_name"])
    return found


def _attribute(name: str, field: int, value: int | str) -> bytes:
    content = _text(1, name) + (_text(field, value) if isinstance(value, str) else _number(field, value))
    return _varint(10 << 3 | _BYTES) + _delimited(content)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _varint(field << 3 | _BYTES) + _delimited(value.encode("utf-8", "replace"))


def _delimited(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
