"""The result of a projection as JSON: what is written, how it is read, and how it is computed again."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.trace import Trace
from replay.parameters import Parameters, load_parameters
from replay.projection import Projection
from replay.provenance import digest
from replay.what_ifs import WhatIf, compose, parse_what_if
from seqpoint.graphs import Progress
from seqpoint.projecting import ProjectOptions, project_trace

__all__ = ["Reproduction", "read_result", "reproduce", "result_of"]

_NAMES = ("projected_ns", "speedup", "low", "high", "measured_share", "derived_share", "assumed_share")
#: What is compared.
_COMPARED = ("baseline_ns", "measured_ns", "device_busy_share", "rows")
_BYTES, _DRAWS, _ITERATIONS, _WHAT_IFS, _SHOWN = 2**26, 100_000, 1_000_000, 10_000, 100
_TEXT = 500
#: Numbers of a record, and by how much those of a parameter's range may differ: what models can multiply.
_LARGEST, _WIDEST = 1e18, 1e12
_WRITES = "what `seqpoint project --json` writes"


def result_of(projection: Projection) -> dict[str, Any]:
    """Return a projection as JSON has it, with stable keys (`datasets/schemas/project.schema.json`)."""
    return {
        "baseline_ns": projection.baseline_ns,
        "measured_ns": projection.measured_ns,
        "steady_ns": projection.steady_ns,
        "device_busy_share": projection.device_busy_share,
        "pace": projection.pace,
        "pace_by_rank": {str(rank): share for rank, share in projection.pace_by_rank.items()},
        "room": projection.room,
        "bound": projection.bound,
        "rows": [
            {
                "title": row.title,
                "what_if": list(row.what_if),
                **{name: getattr(row, name) for name in _NAMES},
                "notes": list(row.notes),
            }
            for row in projection.rows
        ],
        "provenance": projection.provenance,
    }


def read_result(path: str | Path) -> dict[str, Any]:
    """Return what a file holds that `seqpoint project --json` wrote.

    Raises
    ------
    NotFoundError
        There is no such file.
    BrokenFileError
        It is no JSON, larger than 64 MiB, or not the result of a projection with all that it stands on.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; give what `seqpoint project --json` wrote")
    with path.open("rb") as stream:
        content = stream.read(_BYTES + 1)
    if len(content) > _BYTES:
        raise BrokenFileError(f"{path}: larger than {_BYTES} bytes, so not the result of a projection")
    found = _loaded(content, str(path))
    facts = found.get("provenance") if isinstance(found, dict) else None
    if not isinstance(facts, dict):
        raise BrokenFileError(f"{path}: has no provenance, so it is not what `seqpoint project --json` wrote")
    for key in _COMPARED:
        if key not in found:
            raise BrokenFileError(f"{path}: has no {key}, so it is not what `seqpoint project --json` wrote")
    _check_facts(facts, str(path))
    assert isinstance(found, dict)
    return found


def _loaded(content: bytes, place: str) -> Any:
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BrokenFileError(f"{place}: no JSON: {error}") from error
    except RecursionError as error:
        raise BrokenFileError(f"{place}: no JSON: nested too deep") from error
    except ValueError as error:  # Python reads no number that is longer
        raise BrokenFileError(f"{place}: a number has thousands of digits") from error


def _check_facts(facts: dict[str, Any], place: str) -> None:
    weights, iterations = facts.get("weights") or [], facts.get("iterations") or []
    fine = {
        "trace_fingerprint": isinstance(facts.get("trace_fingerprint"), str),
        "draws": _whole(facts.get("draws")) and 1 <= facts["draws"] <= _DRAWS,
        "seed": _whole(facts.get("seed")) and facts["seed"] >= 0,
        "iterations": _is_list(iterations, _ITERATIONS) and all(_whole(one) for one in iterations),
        "weights": _is_list(weights, _ITERATIONS) and all(_number(w) and w > 0 for w in weights),
        "parameters": isinstance(facts.get("parameters"), dict),
        "what_ifs": _is_list(facts.get("what_ifs"), _WHAT_IFS) and all(map(_is_alternative, facts["what_ifs"])),
        "device": facts.get("device") is None or isinstance(facts["device"], str),
        "reading": _is_reading(facts.get("reading")),
    }
    for key, good in fine.items():
        if not good:
            raise BrokenFileError(f"{place}: provenance.{key} is missing or not {_WRITES}")
    for name, value in facts["parameters"].items():
        if not _is_range(value):
            raise BrokenFileError(f"{place}: provenance.parameters.{name[:60]} is not {_WRITES}: value, low and high")
    if digest(facts["parameters"]) != facts.get("parameters_sha256"):
        raise BrokenFileError(f"{place}: provenance.parameters has not its parameters_sha256; the file was changed")
    if len(weights) != len(iterations):
        raise BrokenFileError(f"{place}: provenance has {len(iterations)} iterations and {len(weights)} weights")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_list(value: object, most: int) -> bool:
    return isinstance(value, list) and len(value) <= most


def _is_range(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not all(map(_number, value)):
        return False
    nominal, low, high = value
    return bool(low <= nominal <= high and (low <= 0 or high <= _WIDEST * low))


def _is_alternative(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    steps, parameters = value.get("steps"), value.get("parameters")
    return (
        isinstance(value.get("title"), str)
        and isinstance(steps, list)
        and 1 <= len(steps) <= 64
        and all(isinstance(step, str) for step in steps)
        and isinstance(parameters, dict)
        and all(map(_number, parameters.values()))
    )


def _is_reading(value: object) -> bool:
    if value is None:
        return True
    texts = [value.get("iterations"), value.get("length")] if isinstance(value, dict) else [0]
    return all(text is None or (isinstance(text, str) and len(text) <= _TEXT) for text in texts)


@dataclass(frozen=True)
class Reproduction:
    """A projection computed again from what it stands on.

    Parameters
    ----------
    identical : bool
        Whether every number and text is the same, bit for bit.
    compared : int
        Numbers and texts compared.
    differences : tuple of (where, recorded, now)
        At most 100.
    notes : tuple of str
        What the two stand on that is not the same: versions, fits, devices.
    """

    identical: bool
    compared: int
    differences: tuple[tuple[str, Any, Any], ...]
    notes: tuple[str, ...]


def reproduce(
    trace: Trace, recorded: dict[str, Any], *, jobs: int = 0, progress: Progress | None = None
) -> Reproduction:
    """Compute a recorded projection again, from its provenance and the trace alone, and compare.

    Iterations, weights, what-ifs, parameters, draws and seed are those of the record, also where this version has
    other defaults.

    Parameters
    ----------
    trace : Trace
    recorded : dict
        As `read_result` returns it.
    jobs : int
        Of no influence on the numbers.
    progress : callable, optional

    Raises
    ------
    InvalidInputError
        The trace is another one, by its fingerprint; or this version has not the same parameters.
    SeqPointError
        As `seqpoint.projecting.project_trace`.
    """
    facts = recorded["provenance"]
    if trace.meta.fingerprint != facts["trace_fingerprint"]:
        raise InvalidInputError(
            f"this is another trace: its fingerprint is {trace.meta.fingerprint[:16]}..., the result's is "
            f"{facts['trace_fingerprint'][:16]}... (of {', '.join(map(str, facts.get('sources', [])))[:200]})"
        )
    options = ProjectOptions(
        iterations=facts["iterations"],
        weights=facts["weights"],
        device=facts["device"] if facts.get("device_known_by") == "user" else None,
        draws=facts["draws"],
        seed=facts["seed"],
        jobs=jobs,
        progress=progress,
        parameters=_parameters(facts["parameters"]),
    )
    again = json.loads(json.dumps(result_of(project_trace(trace, _what_ifs(facts), options))))
    pairs = list(_compared({key: recorded[key] for key in _COMPARED}, {key: again[key] for key in _COMPARED}, ""))
    different = tuple(pair for pair in pairs if not _same(pair[1], pair[2]))
    return Reproduction(not different, len(pairs), different[:_SHOWN], tuple(_notes(facts, again["provenance"])))


def _what_ifs(facts: dict[str, Any]) -> list[WhatIf]:
    found = []
    for one in facts["what_ifs"]:
        parts = [parse_what_if(step) for step in one["steps"]]
        what_if = parts[0] if len(parts) == 1 else compose(*parts)
        parameters = tuple(sorted((name, float(value)) for name, value in one["parameters"].items()))
        found.append(replace(what_if, title=one["title"], parameters=parameters))
    return found


def _parameters(recorded: dict[str, Sequence[float]]) -> Parameters:
    """Return the recorded parameters, in the order in which this version draws them."""
    own = load_parameters().known
    if odd := sorted(set(own) ^ set(recorded)):
        raise InvalidInputError(f"this version has not the parameters of the result: {', '.join(odd)[:200]} differ")
    known = {
        name: replace(one, value=float(value), low=float(low), high=float(high), source="the result")
        for name, one in own.items()
        for value, low, high in [recorded[name]]
    }
    return Parameters(known, {name: one.value for name, one in known.items()})


def _compared(one: object, other: object, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield where, recorded and now for every leaf of either."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(set(one) | set(other)):
            yield from _compared(one.get(key), other.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _compared(a, b, f"{where}[{i}]")
    else:
        yield where, one, other


def _same(one: object, other: object) -> bool:
    """Return whether two leaves are the same; a number that JSON cannot hold was written as null."""
    if isinstance(other, float) and not math.isfinite(other):
        return one is None
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _notes(recorded: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in ("version", "libraries", "models_sha256", "device", "device_known_by"):
        if recorded.get(key) != now.get(key):
            yield f"{key} was {str(recorded.get(key))[:200]} and is {str(now.get(key))[:200]}"
