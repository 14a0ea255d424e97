"""Compare every event of real Kineto files, its name, times and arguments, with the standard library's decoder.

    python benchmarks/ingest/kineto_events.py ../shared/data/traces/kineto

prints the files that differ. `tests/test_real_kineto.py` does the same for a sample of the files.
"""

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from profilers.ingest.stage import Stage
from profilers.readers.kineto import KinetoReader
from profilers.readers.kineto.rows import ARGUMENTS, KIND_OF
from profilers.trace.arrays import MISSING, integers, strings

#: Columns whose -1 stands for none.
NONE = {"stream", "wait_on_stream", "event", "event_correlation"}

#: Kind, name, start and duration in ns, and arguments.
Event = tuple[str, str, int, int | None, dict[str, Any]]


def decoded(path: Path) -> Counter[str]:
    """Return every event that a reader keeps, as text, from the standard library."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, strict=False)
    return Counter(map(_line, _events(document["traceEvents"])))


def _events(events: list[dict[str, Any]]) -> Iterator[Event]:
    for event in events:
        args, phase = event.get("args") or {}, event.get("ph", "X")
        category = str(event.get("cat", "")).lower()
        counter = phase == "C" or (phase in "iIRn" and args)
        if not counter and (phase != "X" or category == "trace"):
            continue
        start, dur = Decimal(event["ts"]) * 1000, event.get("dur")
        if start == 0 and dur == 0:
            continue
        kind = "counters" if counter else KIND_OF.get(category, "ranges")
        if kind == "device":  # of MTIA: copies, waits and kernels in one category
            copy = "copies" if event["name"] == "dma_request" else "kernels"
            kind = "syncs" if event["name"].startswith("event_") else copy
        if kind in ("kernels", "copies"):  # its process and thread are device and stream
            args = {"device": event["pid"], "stream": event["tid"], **args}
        yield kind, event["name"], int(start), None if dur is None else int(Decimal(dur) * 1000), _named(kind, args)


def _named(kind: str, args: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of their columns."""
    columns = {key: column for column, argument in ARGUMENTS[kind].items() for key in argument.keys}
    found = {columns.get(key, key): value for key, value in args.items()}
    return {k: v for k, v in found.items() if not (kind == "syncs" and k in NONE and v == -1)}


def _line(event: Event) -> str:
    kind, name, start, dur, args = event
    return json.dumps([kind, name, start, dur, _plain(args)], sort_keys=True)


def _plain(value: Any) -> Any:
    """Return numbers as one kind of number, whatever they are written as."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, Decimal | int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return float(value)
    return value


def read(path: Path) -> tuple[Counter[str], Mapping[str, int]]:
    """Return every row of the reader as text, and what it counted."""
    stage = Stage()
    meta = KinetoReader().read([path], stage)
    rows = (row for kind in ARGUMENTS for row in _rows(stage, kind))
    return Counter(map(_line, rows)), meta.quality.counts


def _rows(stage: Stage, kind: str) -> Iterator[Event]:
    table = stage.table(kind)
    typed = {column: (table[column].to_pylist(), a.what) for column, a in ARGUMENTS[kind].items()}
    rows = zip(
        strings(table, "name"), integers(table, "start_ns").tolist(), integers(table, "dur_ns").tolist(), strict=True
    )
    for i, ((name, start, dur), rest) in enumerate(zip(rows, table["args"].to_pylist(), strict=True)):
        args = _named(kind, json.loads(rest)) if rest else {}
        for column, (values, what) in typed.items():
            if values[i] is not None:
                assert column not in args
                args[column] = json.loads(values[i]) if what == "json" else values[i]
        yield kind, name, start, None if dur == MISSING else dur, args


def main() -> None:
    """Print the files that differ; exit with 1 where any does."""
    folder, wrong = Path(sys.argv[1]), 0
    for path in sorted(folder.rglob("*.json*")):
        wanted, (rows, _) = decoded(path), read(path)
        if wanted != rows:
            wrong += 1
            print(f"{path.relative_to(folder)}: lacks {(wanted - rows).total()}, adds {(rows - wanted).total()}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
