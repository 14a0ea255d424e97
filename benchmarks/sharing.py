"""Compare every real trace with its anonymous form: the figures of four commands, and the words of its files.

    python benchmarks/sharing.py ../shared/data/traces ../shared/new/traces

| column | what |
|---|---|
| describe to scale_device | equal numbers in the JSON, or the error of both; `DIFFERS` and how many numbers differ |
| renamed | private names |
| words | words of five letters or more in the written files that are neither public nor of the toolkit |
"""

import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

import seqpoint as sp
from benchmarks.identity import cases
from profilers.errors import SeqPointError
from profilers.trace.schema import KINDS
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import Trace
from profilers.writers.anonymous import anonymous_trace, public_names

#: Commands by name, each as the JSON that it prints.
COMMANDS: Mapping[str, Callable[[Trace], Any]] = {
    "describe": lambda trace: sp.describe(trace, by=["kernel", "operator"]).to_dict(),
    "characterize": lambda trace: sp.characterize(trace).to_dict(),
    "analyze": lambda trace: sp.analyze(trace).to_dict(),
    **{
        what_if: lambda trace, what_if=what_if: sp.project(trace, [what_if]).to_dict()  # type: ignore[misc]
        for what_if in ("scale_kernels:gemm:0.5", "overlap:ideal", "scale_device:MI355X")
    },
}
_RUN = re.compile(r"[A-Za-z]{5,}")
#: Mangled names, whose letters are codes, and the hash of the source files.
_NO_WORDS = re.compile(r"_Z\w+|^[0-9a-f]{32,}$")
#: Words of the format of a trace, and of new names.
_OURS = {
    *KINDS,
    "seqpoint",
    "units",
    "iterations",
    "parquet",
    "fingerprint",
    "devices",
    "quality",
    "sources",
    "class",
    "rules",
}


def numbers(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number of some JSON with its place; rows by their numbers, since names break their ties."""
    if isinstance(content, Mapping):
        content = {key: value for key, value in content.items() if key != "class_rules"}
        for at, (key, value) in enumerate(content.items()):
            is_name = not re.fullmatch(r"[a-z0-9_]+", str(key))
            yield from numbers(value, f"{path}.{at if is_name else key}")
    elif isinstance(content, list | tuple):
        yield path, len(content)
        rows = [list(numbers(value)) for value in content]
        for at, row in enumerate(sorted(rows, key=repr) if rows and isinstance(content[0], Mapping) else rows):
            yield from ((f"{path}.{at}{place}", number) for place, number in row)
    elif not isinstance(content, str):
        yield path, None if content != content else content


def differences(before: Any, after: Any) -> tuple[int, list[str]]:
    """Return how many numbers two JSON contents have, and the places of those that differ."""
    first, second = list(numbers(before)), list(numbers(after))
    differing = [f"{a} {b}" for a, b in zip(first, second, strict=False) if a[1] != b[1]]
    return len(first), differing + ["length"] * (len(first) != len(second))


def texts_of(folder: Path) -> Iterator[str]:
    """Yield every text in the files of a trace: names of files, of columns, dictionaries, values, and descriptions."""
    for file in sorted(folder.rglob("*")):
        yield str(file.relative_to(folder))
        if file.suffix == ".parquet":
            parquet = ParquetFile(file)
            for key, value in (parquet.schema_arrow.metadata or {}).items():
                yield from (key.decode(), value.decode(errors="replace"))
            for column in parquet.read().columns:
                for chunk in column.chunks:
                    values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
                    if pa.types.is_string(values.type):
                        yield from filter(None, values.unique().to_pylist())
        elif file.is_file():
            yield from _strings(json.loads(file.read_text()))


def _strings(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from (str(key), *_strings(value))
    elif isinstance(content, list):
        for value in content:
            yield from _strings(value)


def private_words(folder: Path) -> set[str]:
    """Return the runs of five letters or more, in lower case, that are not made of public words."""
    public = public_names()
    runs = {run for text in texts_of(folder) for run in _RUN.findall(_NO_WORDS.sub("", text))}
    counts = set(json.loads((folder / "meta.json").read_text())["quality"])
    ours = {
        *_OURS,
        *(name.strip("_") for name in sys.stdlib_module_names),
        *(run for count in counts for run in _RUN.findall(count)),
    }
    return {run.lower() for run in runs if not public.is_public(run) and run not in ours}


def compared(trace: Trace, scratch: Path) -> tuple[dict[str, str], list[str]]:
    """Return a row of the table, and the places that differ."""
    anonymous, counts = anonymous_trace(trace)
    written = load_trace(save_trace(anonymous, scratch / "shared.trace"))
    row: dict[str, str] = {"renamed": str(sum(counts.values()))}
    places: list[str] = []
    for name, command in COMMANDS.items():
        results = []
        for each in (trace, written):
            try:
                results.append(command(each))
            except SeqPointError as error:
                results.append({"error": type(error).__name__})
        count, differing = differences(*results)
        failed = [result.get("error") for result in results]
        row[name] = str(failed[0]) if all(failed) else f"DIFFERS {len(differing)}" if differing else str(count)
        places += [f"{name}{place}" for place in differing]
    row["words"] = " ".join(sorted(private_words(scratch / "shared.trace"))) or "none"
    return row, places


def with_private_kernels(trace: Trace) -> Trace:
    """Return a trace in which every kernel has a private name: its own behind a word that no list has."""
    tables = {}
    for kind in ("kernels", "collectives"):
        table, index = trace.tables[kind], trace.tables[kind].schema.get_field_index("name")
        names = pa.array([f"zebra_{name.removeprefix('void ')}" for name in table["name"].to_pylist()], pa.string())
        field = table.schema.field(index)
        tables[kind] = table.set_column(index, field, names.dictionary_encode().cast(field.type))
    return trace.with_tables(**tables)


def main(roots: list[str]) -> None:
    """Print the table as CSV, and what differs on stderr; with ``--private``, of traces with private kernels."""
    change = with_private_kernels if "--private" in roots else lambda trace: trace
    roots = [root for root in roots if root != "--private"]
    writer = csv.DictWriter(sys.stdout, ("trace", *COMMANDS, "renamed", "words"), lineterminator="\n")
    writer.writeheader()
    for root in map(Path, roots):
        known = {file for _, files in cases(root) for file in files} if (root / "kineto" / "dlrm8").exists() else set()
        others = sorted(f for f in root.rglob("*") if f.is_file() and f not in known)
        for name, files in [*(cases(root) if known else []), *((str(f.relative_to(root)), [f]) for f in others)]:
            try:
                trace = sp.open(files)
            except SeqPointError as error:
                print(f"{name}: {error}"[:150], file=sys.stderr)
                continue
            with tempfile.TemporaryDirectory() as scratch:
                row, places = compared(change(trace), Path(scratch))
            writer.writerow({"trace": name, **row})
            sys.stdout.flush()
            for place in places[:5]:
                print(f"  {name}: {place}"[:300], file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
