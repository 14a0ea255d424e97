"""Projections computed again: from what ``seqpoint project --json`` wrote, and the trace alone.

`read_result` checks such a file, which may come from anybody. `reproduce` computes every number again, and compares.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.ingest.collectives import reclassify
from profilers.trace.kernels import CLASSES, ClassRule
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.projection.evidence import digest
from replay.projection.windows import SampledStep
from replay.what_ifs import WhatIf, parse_what_if
from seqpoint.graphs import Progress
from seqpoint.projecting import ProjectOptions, project_trace

#: Keys of a result that are compared.
_COMPARED_KEYS = ("baseline_ns", "measured_ns", "device_busy_share", "rows")
#: Limits of a result file, which may come from anybody.
_MAX_BYTES, _MAX_DRAWS, _MAX_ITERATIONS, _MAX_WHAT_IFS, _MAX_TEXT = 2**26, 100_000, 1_000_000, 10_000, 500
#: Largest number of a result, and largest ratio of a parameter's range: models can still multiply them.
_MAX_NUMBER, _MAX_RATIO = 1e18, 1e12
#: Most differences that a reproduction lists.
_MAX_DIFFERENCES = 100
_EXPECTED = "what `seqpoint project --json` writes"


def read_result(path: str | Path) -> dict[str, Any]:
    """Read a result of `seqpoint project --json`, and check it.

    Parameters
    ----------
    path : str or Path
        The file.

    Raises
    ------
    NotFoundError
        There is no such file.
    BrokenFileError
        The file is not JSON, is larger than 64 MiB, or is not the result of a projection with its provenance.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; give what `seqpoint project --json` wrote")
    with path.open("rb") as stream:
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise BrokenFileError(f"{path}: larger than {_MAX_BYTES} bytes, so not the result of a projection")
    result = _loaded(content, str(path))
    if not (isinstance(result, dict) and isinstance(result.get("provenance"), dict)):
        raise BrokenFileError(f"{path}: has no provenance, so it is not {_EXPECTED}")
    if missing := next((key for key in _COMPARED_KEYS if key not in result), None):
        raise BrokenFileError(f"{path}: has no {missing}, so it is not {_EXPECTED}")
    _check_facts(result["provenance"], str(path))
    return result


def _loaded(content: bytes, file: str) -> Any:
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BrokenFileError(f"{file}: not JSON: {error}") from error
    except RecursionError as error:
        raise BrokenFileError(f"{file}: not JSON: nested too deep") from error
    except ValueError as error:  # Python refuses numbers of thousands of digits
        raise BrokenFileError(f"{file}: a number has thousands of digits") from error


_Number = Annotated[float, msgspec.Meta(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
_Whole = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=_MAX_TEXT)]


class _RecordedWhatIf(msgspec.Struct):
    """A what-if of the provenance."""

    title: str
    steps: Annotated[list[str], msgspec.Meta(min_length=1, max_length=64)]
    parameters: dict[str, _Number]


class _RecordedSample(msgspec.Struct):
    """How a chosen iteration stands for others."""

    position: _Number
    deviation: Annotated[float, msgspec.Meta(ge=0, le=_MAX_NUMBER)]


class _RecordedReading(msgspec.Struct):
    """How the trace was read."""

    iterations: _Text | None = None
    length: _Text | None = None


#: Facts of the provenance that a projection is computed from again.
_FACTS: Mapping[str, Any] = MappingProxyType(
    {
        "trace_fingerprint": str,
        "draws": Annotated[int, msgspec.Meta(ge=1, le=_MAX_DRAWS)],
        "seed": Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)],
        "iterations": Annotated[list[_Whole], msgspec.Meta(max_length=_MAX_ITERATIONS)] | None,
        "weights": Annotated[
            list[Annotated[float, msgspec.Meta(gt=0, le=_MAX_NUMBER)]], msgspec.Meta(max_length=_MAX_ITERATIONS)
        ]
        | None,
        "sampled": Annotated[list[_RecordedSample], msgspec.Meta(max_length=_MAX_ITERATIONS)] | None,
        "parameters": dict[str, Any],
        "what_ifs": Annotated[list[_RecordedWhatIf], msgspec.Meta(max_length=_MAX_WHAT_IFS)],
        "device": str | None,
        "reading": _RecordedReading | None,
        "class_rules": list[tuple[_Text, _Text]] | None,
    }
)


def _check_facts(facts: dict[str, Any], file: str) -> None:
    for key, layout in _FACTS.items():
        if not _has_layout(facts.get(key), layout):
            raise BrokenFileError(f"{file}: provenance.{key} is missing or not {_EXPECTED}")
    for name, value in facts["parameters"].items():
        if not (_has_layout(value, tuple[_Number, _Number, _Number]) and _is_range(*value)):
            raise BrokenFileError(f"{file}: provenance.parameters.{name[:60]} is not {_EXPECTED}: value, low and high")
    if digest(facts["parameters"]) != facts.get("parameters_sha256"):
        raise BrokenFileError(f"{file}: provenance.parameters do not match parameters_sha256; the file was changed")
    weights, iterations = facts.get("weights") or [], facts.get("iterations") or []
    if len(weights) != len(iterations):
        raise BrokenFileError(f"{file}: provenance has {len(iterations)} iterations and {len(weights)} weights")
    if len(sampled := facts.get("sampled") or iterations) != len(iterations):
        raise BrokenFileError(f"{file}: provenance has {len(iterations)} iterations and {len(sampled)} samples")


def _has_layout(value: object, layout: Any) -> bool:
    try:
        msgspec.convert(value, layout)
    except msgspec.ValidationError:
        return False
    return True


def _is_range(nominal: float, low: float, high: float) -> bool:
    return low <= nominal <= high and (low <= 0 or high <= _MAX_RATIO * low)


@dataclass(frozen=True)
class Reproduction:
    """A projection computed again from its provenance, compared with the recorded one.

    Parameters
    ----------
    identical : bool
        Whether every number and text is the same, bit for bit.
    compared : int
        Number of compared numbers and texts.
    differences : tuple of (where, recorded, now)
        The first 100 differences.
    notes : tuple of str
        Differences of the provenance: versions, fits, devices.
    """

    identical: bool
    compared: int
    differences: tuple[tuple[str, Any, Any], ...]
    notes: tuple[str, ...]


def reproduce(
    trace: Trace, recorded: dict[str, Any], *, jobs: int = 0, progress: Progress | None = None
) -> Reproduction:
    """Compute a recorded projection again, from its provenance and the trace alone, and compare.

    Iterations, weights, what-ifs, parameters, draws and seed are those of the record, even if this version has other
    defaults.

    Parameters
    ----------
    trace : Trace
        The trace of the projection.
    recorded : dict
        The recorded result, as `read_result` returns it.
    jobs : int
        Draws at a time; it does not change the numbers.
    progress : callable, optional
        Called with (steps done, steps in all, what).

    Raises
    ------
    InvalidInputError
        The fingerprint of the trace is another, or this version has other parameters.
    SeqPointError
        The projection cannot be computed, see `project_trace`.
    """
    facts = recorded["provenance"]
    if trace.meta.fingerprint != facts["trace_fingerprint"]:
        raise InvalidInputError(
            f"this is another trace: its fingerprint is {trace.meta.fingerprint[:16]}..., the result's is "
            f"{facts['trace_fingerprint'][:16]}... (of {', '.join(map(str, facts.get('sources', [])))[:200]})"
        )
    trace = _with_classes(trace, facts)
    options = ProjectOptions(
        iterations=facts["iterations"],
        weights=facts["weights"],
        device=facts["device"] if facts.get("device_known_by") == "user" else None,
        draws=facts["draws"],
        seed=facts["seed"],
        jobs=jobs,
        progress=progress,
        parameters=_parameters(facts["parameters"]),
        sampled=[SampledStep(**sample) for sample in facts.get("sampled") or ()],
    )
    again = json.loads(json.dumps(project_trace(trace, _what_ifs(facts), options).to_dict()))
    before, after = ({key: result[key] for key in _COMPARED_KEYS} for result in (recorded, again))
    leaves = list(_leaves(before, after, ""))
    differences = tuple(leaf for leaf in leaves if not _same(leaf[1], leaf[2]))
    now = again["provenance"]
    changes = tuple(
        f"{key} was {str(facts.get(key))[:200]} and is {str(now.get(key))[:200]}"
        for key in ("version", "libraries", "models_sha256", "device", "device_known_by")
        if facts.get(key) != now.get(key)
    )
    return Reproduction(not differences, len(leaves), differences[:_MAX_DIFFERENCES], changes)


def _with_classes(trace: Trace, facts: dict[str, Any]) -> Trace:
    """Return the trace with the user's own classes of kernels that a result was computed with."""
    rules = tuple(ClassRule(*rule) for rule in facts.get("class_rules") or ())
    if unknown := {rule.class_ for rule in rules} - set(CLASSES):
        raise InvalidInputError(f"the result names an unknown class of kernels: {min(unknown)[:60]}")
    if trace.meta.class_rules not in ((), rules):
        raise InvalidInputError("the trace has other classes of kernels than the result; ingest it with the same")
    return reclassify(trace, rules) if rules != trace.meta.class_rules else trace


def _what_ifs(facts: dict[str, Any]) -> list[WhatIf]:
    what_ifs = []
    for record in facts["what_ifs"]:
        what_if = parse_what_if("+".join(record["steps"]))
        parameters = tuple(sorted((name, float(value)) for name, value in record["parameters"].items()))
        what_ifs.append(replace(what_if, title=record["title"], parameters=parameters))
    return what_ifs


def _parameters(recorded: dict[str, Sequence[float]]) -> Parameters:
    """Return the recorded parameters, in the order in which this version draws them."""
    shipped = load_parameters()
    if different := sorted(set(shipped.known) ^ set(recorded)):
        names = ", ".join(different)[:200]
        raise InvalidInputError(
            f"this version has other parameters than the result: {names}; use the version that wrote it"
        )
    parameters = {
        name: replace(parameter, value=float(value), low=float(low), high=float(high), source="the result")
        for name, parameter in shipped.known.items()
        for value, low, high in [recorded[name]]
    }
    values = {name: parameter.value for name, parameter in parameters.items()}
    return replace(shipped, known=parameters, values=values)


def _leaves(recorded: object, now: object, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the recorded and the new value of every leaf of either."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in sorted(set(recorded) | set(now)):
            yield from _leaves(recorded.get(key), now.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for i, (a, b) in enumerate(zip(recorded, now, strict=True)):
            yield from _leaves(a, b, f"{where}[{i}]")
    else:
        yield where, recorded, now


def _same(recorded: object, now: object) -> bool:
    """Return whether two leaves are the same; JSON holds null for a number that is not finite."""
    if isinstance(now, float) and not math.isfinite(now):
        return recorded is None
    return recorded == now and isinstance(recorded, bool) == isinstance(now, bool)
