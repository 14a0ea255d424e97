"""Requests of an inference engine: when each arrives, and how many tokens it has.

`read_requests` reads them from a CSV or JSON file of a user. `with_rate` gives them arrivals at another rate.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_csv
from profilers.trace.arrays import Floats, Ints

#: Names of the columns of a file, in lower case: the tools that write them differ. The first that a file has counts.
_ARRIVAL = ("arrived_at", "arrival_s", "timestamp", "arrival_time", "arrival")
_PROMPT = (
    *("num_prefill_tokens", "prompt_tokens", "input_tokens", "contexttokens"),
    *("prompt_len", "request tokens", "input_length", "input_len"),
)
_OUTPUT = (
    *("num_decode_tokens", "output_tokens", "completion_tokens", "generatedtokens"),
    *("output_len", "response tokens", "output_length"),
)
#: Largest number of tokens, and latest arrival in seconds: later ones are in another unit.
_MOST_TOKENS, _LATEST_S = 10_000_000, 1e11
_MOST_BYTES = 32 << 20
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
#: Characters of a value that an error shows.
_SHOWN = 40
#: A row of a file: the file and the line, for messages, and the value of each column.
_Row = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Requests:
    """Requests in the order of their arrival.

    Parameters
    ----------
    arrival_s : array of float64, shape (n,), or None
        Seconds from the start of the clock, sorted; None if unknown, and then `with_rate` draws them.
    prompt_tokens : array of int64, shape (n,)
        Tokens of each prompt.
    output_tokens : array of int64, shape (n,)
        Tokens that each request generates, its first token included.

    Raises
    ------
    InvalidInputError
        There is no request, the arrays differ in length, arrivals are not sorted, or a number is out of range.

    Examples
    --------
    >>> len(Requests(np.array([0.0, 0.5]), np.array([100, 20]), np.array([8, 1])))
    2
    """

    arrival_s: Floats | None
    prompt_tokens: Ints
    output_tokens: Ints

    def __post_init__(self) -> None:
        _check_range("prompt_tokens", self.prompt_tokens, 1, _MOST_TOKENS)
        _check_range("output_tokens", self.output_tokens, 1, _MOST_TOKENS)
        arrival_s = np.zeros(len(self)) if self.arrival_s is None else self.arrival_s
        _check_range("arrival_s", arrival_s, 0, _LATEST_S)
        if not len(self) or not len(self.prompt_tokens) == len(self.output_tokens) == len(arrival_s):
            raise InvalidInputError("requests need arrays of one length, of one request or more")
        if (np.diff(arrival_s) < 0).any():
            raise InvalidInputError("requests must be sorted by arrival")

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def observed_arrival_s(self) -> Floats:
        """The arrivals.

        Raises
        ------
        InvalidInputError
            They are unknown.
        """
        if self.arrival_s is None:
            raise InvalidInputError("the requests have no arrivals; give a rate in requests/s and a seed to draw them")
        return self.arrival_s

    @property
    def rate(self) -> float:
        """Arrivals per second, from the first to the last; infinite if all arrive at once."""
        span_s = float(self.observed_arrival_s[-1] - self.observed_arrival_s[0])
        return (len(self) - 1) / span_s if span_s > 0 else np.inf


def _check_range(name: str, values: Floats | Ints, low: float, high: float) -> None:
    """Refuse a value that is out of range or NaN; the message names its request."""
    wrong = np.flatnonzero(~((values >= low) & (values <= high)))
    if len(wrong):
        row = wrong[0]
        raise InvalidInputError(f"request {row}: {name} is {values[row]}; it must be from {low} to {high:,.0f}")


def with_rate(requests: Requests, requests_per_s: float, seed: int | None = None) -> Requests:
    """Return requests with arrivals at a rate: Poisson with a seed, their own arrivals in another time without.

    One seed draws the same gaps for all rates, in units of the mean gap, so that rates differ by nothing else.

    Parameters
    ----------
    requests : Requests
        Requests with or without arrivals.
    requests_per_s : float
        Mean arrivals per second.
    seed : int, optional
        Seed of exponential gaps. Without it, the arrivals of `requests` are scaled, so that bursts stay.

    Raises
    ------
    InvalidInputError
        The rate is below 1e-9 or above 1e9, or the seed below 0; or there is no seed, and arrivals are unknown or all
        at once.

    Examples
    --------
    >>> bursts = Requests(np.array([0.0, 0.0, 4.0]), np.full(3, 10), np.full(3, 2))
    >>> with_rate(bursts, 2.0).arrival_s.tolist()
    [0.0, 0.0, 1.0]
    """
    if not 1e-9 <= requests_per_s <= 1e9:
        raise InvalidInputError(f"a rate of {requests_per_s} requests/s; it must be from 1e-9 to 1e9")
    if seed is not None and seed < 0:
        raise InvalidInputError(f"a seed of {seed}; it must be 0 or more")
    if seed is not None:
        gaps = np.random.default_rng(seed).exponential(1 / requests_per_s, len(requests))
        return replace(requests, arrival_s=np.cumsum(gaps))
    if not np.isfinite(requests.rate):
        raise InvalidInputError("all requests arrive at once, which has no rate to scale; give a seed to draw arrivals")
    return replace(requests, arrival_s=requests.observed_arrival_s * (requests.rate / requests_per_s))


def read_requests(path: str | Path) -> Requests:
    """Return the requests of a file: CSV with a header, a JSON list of objects, or a JSON object a line.

    Columns have the names that tools write, such as ``prompt_tokens`` and ``output_tokens``; `docs/serving.md` lists
    them. Arrivals, if there are any, are seconds, or dates in ISO 8601. The case of names does not matter, and other
    columns are ignored. The first request arrives at 0 s.

    Parameters
    ----------
    path : str or Path
        File in UTF-8, of at most 32 MiB.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        The file cannot be read, lacks a column, holds no request, or has a value out of range; the message names the
        line, or the number of the request in a JSON list.
    """
    file = Path(path)
    rows = _rows(file)
    if not rows:
        raise InvalidInputError(f"{file}: holds no request")
    if broken := next((where for where, row in rows if None in row), None):
        raise InvalidInputError(f"{broken}: has more cells than the header")
    names = {name.lower(): name for name in rows[0][1]}
    arrival, prompt, output = (_column(names, known) for known in (_ARRIVAL, _PROMPT, _OUTPUT))
    if prompt is None or output is None:
        lacking, shown = ", ".join(_OUTPUT if prompt else _PROMPT), ", ".join(names)[: 4 * _SHOWN]
        raise InvalidInputError(f"{file}: has none of the columns {lacking} (it has {shown!r})")
    counts = f"a whole number from 1 to {_MOST_TOKENS:,}"
    prompts, outputs = (_values(rows, column, _token_count, counts).astype(np.int64) for column in (prompt, output))
    if arrival is None:
        return Requests(None, prompts, outputs)
    arrival_s = _values(rows, arrival, _time_s, f"seconds from 0 to {_LATEST_S:.0e}, or a date in ISO 8601")
    order = np.argsort(arrival_s, kind="stable")
    return Requests(arrival_s[order] - arrival_s[order[0]], prompts[order], outputs[order])


def _column(names: Mapping[str, str], known: Sequence[str]) -> str | None:
    """Return the first of the known columns that a file has, as the file writes it."""
    return next((names[name] for name in known if name in names), None)


def _rows(file: Path) -> list[_Row]:
    """Return the rows of a file in the format that its first character shows."""
    try:
        if not file.is_file():
            raise NotFoundError(f"{file}: no such file of requests")
        if file.stat().st_size > _MOST_BYTES:
            raise InvalidInputError(f"{file}: larger than 32 MiB; give a part of the requests")
        raw = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
        start = raw[:4096].lstrip()[:1]
        if start not in (b"[", b"{"):
            return [(f"{file}: line {line}", row) for line, row in read_csv(file, "requests")[1]]
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{str(file)[:200]!r}: cannot be read ({error})") from error
    if start == b"[":
        requests = _decoded(raw, list[dict[str, Any]], f"{file}")
        return [(f"{file}: request {number}", row) for number, row in enumerate(requests, 1)]
    lines = [(f"{file}: line {number}", line) for number, line in enumerate(raw.split(b"\n"), 1) if line.strip()]
    return [(where, _decoded(line, dict[str, Any], where)) for where, line in lines]


def _decoded(raw: bytes, layout: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=layout)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{where}: no JSON of requests ({error})") from error


def _values(rows: Iterable[_Row], column: str, read: Callable[[object], float | None], needed: str) -> Floats:
    """Return a column as `read` understands its values; a Python loop over requests, 1 us each."""
    values = []
    for where, row in rows:
        value = row.get(column)
        number = read(value)
        if number is None:
            shown = "missing" if value is None else repr(value)[:_SHOWN]
            raise InvalidInputError(f"{where}: {column} is {shown}; it must be {needed}")
        values.append(number)
    return np.array(values, np.float64)


def _token_count(value: object) -> float | None:
    """Return a number of tokens; None if the value is no whole number in range."""
    number = _number(value)
    return number if number is not None and 1 <= number <= _MOST_TOKENS and number.is_integer() else None


def _time_s(value: object) -> float | None:
    """Return a time in seconds; a date counts from 1970, in UTC without a zone. None if the value is neither."""
    number = _number(value)
    if number is None and isinstance(value, str):
        try:
            date = datetime.fromisoformat(value.strip())
            number = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    return number if number is not None and 0 <= number <= _LATEST_S else None


def _number(value: object) -> float | None:
    """Return a finite number, or the number that a text states; None for anything else."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None
