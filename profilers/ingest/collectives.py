"""Collective operations: their facts on one rank, and their match across ranks.

`add_collectives` makes a row of each communication kernel. Its facts come from the kernel's arguments, its operator,
the annotation around its launch, and its name, in this order. `match_collectives` finds the rows of different ranks
that are one operation.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.ingest.linking import innermost
from profilers.readers.common.json_documents import json_object
from profilers.trace.arrays import MISSING, Ints, arrow_array, ends, integers, put, strings
from profilers.trace.columns import lookup
from profilers.trace.kernels import COLLECTIVE, ClassRule, check_rules, class_by_rules, is_collective
from profilers.trace.quality import Quality
from profilers.trace.schema import concatenate, empty_table, make_table
from profilers.trace.trace import Trace

#: The spellings of each standard term in traces, without separators and case.
_SPELLINGS: Mapping[str, str] = {
    "all_reduce": "allreduce allreducecoalesced crossdevicereduce",  # the last is vLLM's own
    "all_gather": "allgather allgatherbase allgatherintotensor allgatherintotensorcoalesced",
    "reduce_scatter": "reducescatter reducescatterbase reducescattertensor reducescattertensorcoalesced",
    "all_to_all": "alltoall alltoallv alltoallbase dispatch combine aa",  # tokens to their experts, and back
    "send_recv": "send recv sendrecv",
    "barrier": "barrier notify signal cleanlowlatencybuffer",
    **{term: term for term in ("broadcast", "reduce", "gather", "scatter")},
}
_TERMS = {spelling: term for term, spellings in _SPELLINGS.items() for spelling in spellings.split()}
_IN_KERNEL_NAME = re.compile(
    r"All_?Reduce|All_?Gather|Reduce_?Scatter|All_?To_?All|Broadcast|Send_?Recv|cross_device_reduce|Reduce"
    r"|notify|barrier|signal|clean_low_latency_buffer|dispatch|combine|a2a",
    re.IGNORECASE,
)
#: Annotations that communication libraries and their wrappers write around a launch.
ANNOTATION = re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc):_?(\w+)")
_BYTES_OF: Mapping[str, int] = {
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "unsigned char"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "c10::half", "c10::bfloat16"), 2),
    **dict.fromkeys(("float", "int", "float32"), 4),
    **dict.fromkeys(("double", "long", "float64", "long int", "complexfloat"), 8),
}


def _term(name: str) -> str | None:
    """Return the standard term of a collective, or None for an unknown spelling."""
    return _TERMS.get(re.sub(r"[^a-z]", "", name.lower()))


def add_collectives(trace: Trace, first_id: int | None = None) -> Trace:
    """Return `trace` with a row in ``collectives`` for every kernel of a communication library.

    The facts come from the first source that has them: the kernel's arguments, those of the operator that launched
    it (``record_param_comms``), the annotation around the launch (``nccl:all_reduce``), and the kernel's name.

    Parameters
    ----------
    trace : Trace
        Linked trace of one file.
    first_id : int, optional
        Id of the first row; by default the ids follow the largest of the trace.
    """
    kernels = trace.kernels
    names = strings(kernels, "name")
    communicates = {name: is_collective(name, trace.meta.class_rules) for name in set(names)}
    rows = np.flatnonzero([communicates[name] for name in names])
    if not len(rows):
        return trace
    chosen = kernels.take(arrow_array(rows))
    first = trace.next_id() if first_id is None else first_id
    sources_of = list(zip(*_sources(trace, chosen), strict=True))
    facts_of = {sources: _facts(*sources) for sources in set(sources_of)}
    facts = [facts_of[sources] for sources in sources_of]
    ids = np.arange(first, first + len(rows))
    columns = {name: chosen[name] for name in ("rank", "name", "start_ns", "dur_ns", "op_id")}
    columns |= {"id": ids, "kernel_id": chosen["id"]}
    columns |= {name: [fact[name] for fact in facts] for name in facts[0]}
    collective_id = np.full(kernels.num_rows, MISSING)
    collective_id[rows] = ids
    return trace.with_tables(
        collectives=make_table("collectives", columns), kernels=put(kernels, "collective_id", collective_id)
    ).with_quality({"collectives": len(rows)})


def reclassify(trace: Trace, rules: Sequence[ClassRule]) -> Trace:
    """Return `trace` with a user's own classes of kernels, before the classes that it already has.

    Kernels that a rule calls collectives get a row in ``collectives``; kernels that it calls otherwise lose their row.
    Then collectives are matched anew.

    Parameters
    ----------
    trace : Trace
        The trace, with its collectives.
    rules : sequence of ClassRule
        The user's rules.

    Raises
    ------
    InvalidInputError
        No rule fits a kernel of the trace.
    """
    kernels, names = trace.kernels, strings(trace.kernels, "name")
    distinct = set(names.tolist())
    check_rules(rules, distinct)
    class_rules = tuple(dict.fromkeys((*rules, *trace.meta.class_rules)))
    trace = replace(trace, meta=replace(trace.meta, class_rules=class_rules))
    class_of = {name: class_by_rules(name, rules) for name in distinct}
    ruled = np.array([class_of[name] for name in names], dtype=object)
    known = integers(kernels, "collective_id")
    is_lost = (known != MISSING) & (ruled != None) & (ruled != COLLECTIVE)  # noqa: E711 - of each element
    is_new = (known == MISSING) & (ruled == COLLECTIVE)
    if not (is_lost | is_new).any():
        return trace
    kept = trace.collectives.filter(arrow_array(~np.isin(integers(trace.collectives, "id"), known[is_lost])))
    added = add_collectives(
        trace.with_tables(kernels=kernels.filter(arrow_array(is_new)), collectives=empty_table("collectives")),
        trace.next_id(),
    )
    known[is_lost] = MISSING
    known[is_new] = integers(added.kernels, "collective_id")
    rows = put(added.collectives, "iteration", integers(added.kernels, "iteration"))
    counts = {"collectives": kept.num_rows + rows.num_rows, "collectives_matched": 0}
    quality = Quality({**trace.meta.quality.counts, **counts})
    changed = trace.with_tables(
        kernels=put(kernels, "collective_id", known), collectives=concatenate("collectives", [kept, rows])
    )
    return match_collectives(replace(changed, meta=replace(trace.meta, quality=quality)))


def _sources(trace: Trace, kernels: pa.Table) -> tuple[Iterable[Any], ...]:
    """Return the name of each kernel, its arguments, those of its operator, and the annotation around its launch."""
    noted = np.array([bool(ANNOTATION.match(name)) for name in strings(trace.ranges, "name")], np.bool_)
    notes = trace.ranges.filter(arrow_array(noted))
    launch_rows = _rows_of(trace.launches, integers(kernels, "launch_id"))
    around = np.full(kernels.num_rows, MISSING)
    launched = launch_rows != MISSING
    around[launched] = innermost(notes, trace.launches.take(arrow_array(launch_rows[launched])))
    note_rows = _rows_of(notes, around)
    named = zip(_at(notes["name"], note_rows), _at(notes["args"], note_rows), strict=True)
    annotations = [None if name is None else (name, args) for name, args in named]
    op_args = _at(trace.ops["args"], _rows_of(trace.ops, integers(kernels, "op_id")))
    return strings(kernels, "name"), kernels["args"].to_pylist(), op_args, annotations


def _rows_of(table: pa.Table, ids: Ints) -> Ints:
    """Return the row of each id, or `MISSING`."""
    return lookup(integers(table, "id"), np.arange(table.num_rows), ids)


def _at(texts: pa.ChunkedArray, rows: Ints) -> list[Any]:
    """Return the text in each row, or None if the row is `MISSING`."""
    return texts.take(arrow_array(rows, rows == MISSING)).to_pylist()  # type: ignore[no-any-return]


def _facts(name: str, kernel: str | None, op: str | None, note: tuple[str, str | None] | None) -> dict[str, Any]:
    """Return the facts of a collective from its kernel's name and arguments, its operator and its annotation."""
    stated = next((args for args in (json_object(kernel), json_object(op)) if "Collective name" in args), {})
    noted = json_object(note[1]) if note else {}
    spelling = stated.get("Collective name") or (ANNOTATION.match(note[0]).group(1) if note else "")  # type: ignore[union-attr]
    in_name = _IN_KERNEL_NAME.search(name)
    elements_in = _count(stated.get("In msg nelems")) or _noted_elements(noted)
    elements_out = _count(stated.get("Out msg nelems"))
    dtype = _optional_text(stated.get("dtype")) or _optional_text(_first(noted.get("Input type")))
    size = _BYTES_OF.get((dtype or "").lower())
    largest = max(elements_in or 0, elements_out or 0)
    return {
        "collective": _term(str(spelling)) or (in_name and _term(in_name.group())) or "unknown",
        "elements_in": elements_in,
        "elements_out": elements_out,
        "dtype": dtype,
        "bytes": _count(largest * size) if size else None,
        "group_name": _optional_text(stated.get("Process Group Name")),
        "group_size": _count(stated.get("Group size"), 1 << 31),
        "group_ranks": _optional_text(stated.get("Process Group Ranks")) or None,
    }


def _count(value: Any, limit: int = 1 << 62) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < limit else None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _optional_text(value: Any) -> str | None:
    """Return a text as it is, None as None, and any other value as JSON."""
    if value is None or isinstance(value, str):
        return None if value is None else value.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(value)


def _noted_elements(noted: dict[str, Any]) -> int | None:
    """Return the number of elements of the first input, from the shapes of an annotation."""
    shape = _first(noted.get("Input Dims"))
    valid = isinstance(shape, list) and 0 < len(shape) < 65 and all(_count(size) is not None for size in shape)
    return _count(prod(shape)) if valid else None


def match_collectives(trace: Trace) -> Trace:
    """Return `trace` with ``sequence`` and ``match_id``, which is equal on all ranks that take part in a collective.

    Ranks agree on the order of the collectives of a group. If all ranks have equally many, they match by order, if
    their kinds and data types agree, and the sizes of all-reduces. If a rank has more, the collectives match whose
    times overlap on all ranks, since a collective ends on no rank before it has started on all.

    Parameters
    ----------
    trace : Trace
        Trace with the collectives of all ranks on one clock.
    """
    table = trace.collectives
    if not table.num_rows:
        return trace
    sequence, match = np.full(table.num_rows, MISSING), np.full(table.num_rows, MISSING)
    next_match, matched = 0, 0
    for rows in _groups(table):
        by_rank = _by_rank(table, rows)
        for ordered in by_rank:
            sequence[ordered] = np.arange(len(ordered))
        for members in _same_operation(table, by_rank):
            match[members] = next_match
            next_match += 1
            matched += len(members)
    table = put(put(table, "sequence", sequence), "match_id", match)
    return trace.with_tables(collectives=table).with_quality({"collectives_matched": matched})


def _groups(table: pa.Table) -> Iterable[Ints]:
    keys = defaultdict(list)
    for row, key in enumerate(zip(table["group_name"].to_pylist(), table["group_ranks"].to_pylist(), strict=True)):
        keys[key].append(row)
    return [np.array(rows) for _, rows in sorted(keys.items(), key=str)]


def _by_rank(table: pa.Table, rows: Ints) -> list[Ints]:
    rank, start = integers(table, "rank")[rows], integers(table, "start_ns")[rows]
    order = np.lexsort((rows, start, rank))
    cuts = np.flatnonzero(np.diff(rank[order])) + 1
    return np.split(rows[order], cuts)


def _same_operation(table: pa.Table, by_rank: list[Ints]) -> Iterable[Ints]:
    start, end = integers(table, "start_ns"), ends(table)
    if len({len(rows) for rows in by_rank}) == 1:
        columns = [np.array(members) for members in zip(*by_rank, strict=True)]
    else:
        columns = _overlapping(by_rank, start, end)
    kinds, types, sizes = strings(table, "collective"), table["dtype"].to_pylist(), table["bytes"].to_pylist()
    return [members for members in columns if _agree(members.tolist(), kinds, types, sizes)]


def _agree(members: list[int], kinds: Any, types: list[str | None], sizes: list[int | None]) -> bool:
    """Return whether collectives can be one operation: one kind and data type, and of an all-reduce one size."""
    kind, *others = {kinds[row] for row in members}
    stated = {types[row] for row in members} - {None}
    reduced = {sizes[row] for row in members} - {None} if kind == "all_reduce" else set()
    return not others and len(stated) <= 1 and len(reduced) <= 1


def _overlapping(by_rank: list[Ints], start: Ints, end: Ints) -> list[Ints]:
    """Match each collective of the rank with the fewest to the next one of every other rank that overlaps it."""
    reference = min(by_rank, key=len)
    others = [rows for rows in by_rank if rows is not reference]
    used = [0] * len(others)
    columns = []
    for row in reference.tolist():  # a Python loop over the operations of one group on one rank
        hits = [
            first + np.flatnonzero((start[rows[first:]] < end[row]) & (end[rows[first:]] > start[row]))[:1]
            for rows, first in zip(others, used, strict=True)
        ]
        if all(len(hit) for hit in hits):
            used = [int(hit[0]) + 1 for hit in hits]
            members = [int(rows[at - 1]) for rows, at in zip(others, used, strict=True)]
            columns.append(np.array([row, *members]))
    return columns
