"""Steps of serving: how many requests and tokens of each phase an engine ran, as its annotations state.

A step of an engine that serves a language model computes prompts (prefill), new tokens (decode), or both (mixed).
`parse_serving_step` reads the annotation of a step. `serving_steps` finds the steps of a trace by time. Formats:

- vLLM and SGLang, with sums over requests of query tokens (sq), cached and new tokens (sk), and their products:
  ``execute_8195_context_2(sq8192sk8192sqsq33554432sqsk33554432)_generation_3(sq3sk6144sqsq3sqsk6144)``
- vLLM: ``execute_context_2(8192)_generation_3(3)``, with tokens alone
- SGLang: ``step[EXTEND bs=2 toks=8192]``, ``step[DECODE bs=64 g_sq=64 g_sk=131072 g_sqsq=64 g_sqsk=131072]``
- ATOM: ``prefill[bs=2 tok=14721 ctx=[7803, 6918]]``, ``decode[bs=117/128 tok=117 d=117]``
- TensorRT-LLM: ``[Executor] _forward_step 12: 2 ctx reqs, 30 gen reqs``
"""

import re
from bisect import bisect
from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from profilers.trace.arrays import Ints, encode_text, ends, integers
from profilers.trace.columns import user_ranges
from profilers.trace.trace import Trace

#: Phases of steps of serving.
SERVING_PHASES = ("prefill", "decode", "mixed")
#: Larger sums are from a damaged name.
_LIMIT = 1 << 48


@dataclass(frozen=True, slots=True)
class PhaseTokens:
    """Requests of one phase in a step, with sums over them; None for a sum that the annotation does not state.

    Parameters
    ----------
    requests : int
        Number of requests.
    query_tokens : int, optional
        Tokens that the step computes.
    kv_tokens : int, optional
        Tokens that they may attend to: those of the cache, and the new ones.
    query_squares, query_by_kv : int, optional
        Sum of the squares of query tokens, and of query tokens times KV tokens.
    """

    requests: int = 0
    query_tokens: int | None = 0
    kv_tokens: int | None = 0
    query_squares: int | None = 0
    query_by_kv: int | None = 0

    @property
    def pairs(self) -> float | None:
        """Pairs of a query and a token that it attends to, under a causal mask; None if the sums are unknown.

        A query attends to the cached tokens, to the new ones before it, and to itself. Sums that contradict each other
        count as unknown.

        Examples
        --------
        >>> PhaseTokens(1, 3, 10, 9, 30).pairs == 8 + 9 + 10
        True
        """
        queries, kv = self.query_tokens, self.kv_tokens
        if queries == self.requests and kv is not None:
            pairs = float(kv)
        elif queries is None or self.query_squares is None or self.query_by_kv is None:
            return None
        else:
            pairs = self.query_by_kv - (self.query_squares - queries) / 2
        is_possible = self.requests <= queries <= pairs and (kv is None or (queries <= kv and pairs <= queries * kv))
        return pairs if is_possible else None

    @classmethod
    def equal(cls, requests: int, queries: int, tokens: int) -> "PhaseTokens":
        """Return the sums of so many equal requests, of `queries` tokens that may attend to `tokens`."""
        computed = requests * queries
        return cls(requests, computed, requests * tokens, computed * queries, computed * tokens)


_NONE = PhaseTokens()


@dataclass(frozen=True, slots=True)
class ServingStep:
    """Requests and tokens of a step.

    Parameters
    ----------
    prefill, decode : PhaseTokens
        Requests whose prompts are computed, and requests that get new tokens.
    """

    prefill: PhaseTokens = _NONE
    decode: PhaseTokens = _NONE

    @property
    def phase(self) -> str:
        """``"prefill"``, ``"decode"`` or ``"mixed"``."""
        if self.prefill.requests and self.decode.requests:
            return "mixed"
        return "decode" if self.decode.requests else "prefill"

    @property
    def requests(self) -> int:
        """Requests of both phases."""
        return self.prefill.requests + self.decode.requests

    @property
    def tokens(self) -> int | None:
        """Tokens that the step computes; None if unknown."""
        prefill, decode = self.prefill.query_tokens, self.decode.query_tokens
        return None if prefill is None or decode is None else prefill + decode

    @property
    def has_sums(self) -> bool:
        """Whether the work of attention is known."""
        return self.prefill.pairs is not None and self.decode.pairs is not None

    def annotation(self) -> str:
        """Return the annotation that vLLM writes around a step whose sums are known.

        Examples
        --------
        >>> ServingStep(decode=PhaseTokens.equal(3, 1, 100)).annotation()
        'execute_3_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk300sqsq3sqsk300)'
        """
        sides = [
            f"{each.requests}(sq{each.query_tokens}sk{each.kv_tokens}sqsq{each.query_squares}sqsk{each.query_by_kv})"
            for each in (self.prefill, self.decode)
        ]
        return f"execute_{self.tokens}_context_{sides[0]}_generation_{sides[1]}"


_SUMS = r"\((?:sq(\d+))?(?:sk(\d+))?(?:sqsq(\d+))?(?:sqsk(\d+))?\)"
_DETAILED = re.compile(rf"execute_\d+_context_(\d+){_SUMS}_generation_(\d+){_SUMS}")
_VLLM = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_SGLANG = re.compile(r"step\[(EXTEND|DECODE|MIXED)\b([^\]]*)\]")
_ATOM = re.compile(r"(prefill|decode)\[(.*)\]")
_TENSORRT = re.compile(r"\[Executor\] _forward_step \d+: (\d+) ctx reqs, (\d+) gen reqs")
_FIELD = re.compile(r"(\w+)=(\d+)")
_LENGTHS = re.compile(r"ctx=\[([\d, ]*)\](?!\.)")
#: Beginnings of annotations of steps.
_BEGINNINGS = ("execute_", "step[", "prefill[", "decode[", "[Executor] _forward_step")


def parse_serving_step(name: str) -> ServingStep | None:
    """Return the requests and tokens that an annotation states; None if it is no step of serving.

    Parameters
    ----------
    name : str
        Name of the annotation.

    Examples
    --------
    >>> step = parse_serving_step("execute_context_2(8192)_generation_3(3)")
    >>> step.phase, step.requests, step.tokens, step.decode.pairs
    ('mixed', 5, 8195, None)
    >>> parse_serving_step("forward") is None
    True
    """
    if not name.startswith(_BEGINNINGS) or len(name) > 1 << 12:
        return None
    step = _parsed(name)
    return step if step is not None and step.requests and _is_possible(step) else None


def _is_possible(step: ServingStep) -> bool:
    sides = (step.prefill, step.decode)
    numbers = [number for side in sides for number in astuple(side) if number is not None]
    return all(side.requests or side == _NONE for side in sides) and max(numbers) < _LIMIT


def _parsed(name: str) -> ServingStep | None:
    if match := _DETAILED.match(name):
        context, *first = (_number(text) for text in match.groups()[:5])
        generation, *second = (_number(text) for text in match.groups()[5:])
        return ServingStep(_side(context, *first), _side(generation, *second))
    if match := _VLLM.match(name):
        context, tokens, generation, new = (int(text) for text in match.groups())
        return ServingStep(_side(context, tokens), _side(generation, new))
    if match := _SGLANG.match(name):
        return _sglang(match[1], {key: int(text) for key, text in _FIELD.findall(match[2])})
    if match := _ATOM.match(name):
        return _atom(match[1], match[2])
    if match := _TENSORRT.match(name):
        return ServingStep(_side(int(match[1])), _side(int(match[2])))
    return None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _side(requests: int | None, *sums: int | None) -> PhaseTokens:
    """Return the requests of a phase; sums that are left out are unknown if there is any request."""
    if not requests and not any(sums):
        return _NONE
    query, kv, squares, products = (*sums, None, None, None, None)[:4]
    return PhaseTokens(requests or 0, query, kv, squares, products)


def _sglang(mode: str, fields: Mapping[str, int]) -> ServingStep:
    prefill, decode = ([fields.get(f"{side}_{name}") for name in ("sq", "sk", "sqsq", "sqsk")] for side in "cg")
    requests = fields.get("bs", 0)
    if mode == "DECODE":
        return ServingStep(decode=_side(requests, decode[0] or requests, *decode[1:]))
    if mode == "EXTEND":
        return ServingStep(_side(requests, prefill[0] or fields.get("toks"), *prefill[1:]))
    return ServingStep(_side(fields.get("c", requests), *prefill), _side(fields.get("g", 0), *decode))


def _atom(phase: str, text: str) -> ServingStep:
    fields = {key: int(number) for key, number in _FIELD.findall(text)}
    sums = [fields.get("tok"), *(fields.get(name) for name in ("sk", "sqsq", "sqsk"))]
    if phase == "decode":
        return ServingStep(decode=_side(fields.get("bs"), *sums))
    lengths = [int(each) for each in re.findall(r"\d+", match[1])] if (match := _LENGTHS.search(text)) else []
    if sums[2] is None and sum(lengths) == sums[0] and len(lengths) == fields.get("bs"):
        # The prompts are computed whole: the tokens to attend to are their own.
        squares = sum(each * each for each in lengths)
        sums[1:] = [sums[0], squares, squares]
    return ServingStep(_side(fields.get("bs"), *sums))


@dataclass(frozen=True)
class ServingSteps:
    """Steps of serving on the hosts of a trace, disjoint, ordered by rank and start.

    Parameters
    ----------
    rank, start_ns, end_ns : array of int64, shape (n,)
        Rank, start and end of each annotation.
    number : array of int64, shape (n,)
        Index of each into `steps`.
    steps : tuple of ServingStep
        Distinct steps.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    number: Ints
    steps: tuple[ServingStep, ...]

    def __len__(self) -> int:
        return len(self.rank)

    def step(self, row: int) -> ServingStep:
        """Return the step of an annotation."""
        return self.steps[int(self.number[row])]

    def at(self, rank: Ints, time_ns: Ints) -> Ints:
        """Return the row of the annotation at each time of a rank; -1 outside of steps.

        Parameters
        ----------
        rank, time_ns : array of int64, shape (m,)
            Ranks and times.
        """
        result = np.full(len(rank), -1)
        for each in np.unique(self.rank).tolist():
            mine, asked = np.flatnonzero(self.rank == each), np.flatnonzero(rank == each)
            row = np.searchsorted(self.start_ns[mine], time_ns[asked], side="right") - 1
            inside = (row >= 0) & (time_ns[asked] < self.end_ns[mine][np.maximum(row, 0)])
            result[asked[inside]] = mine[row[inside]]
        return result


def serving_steps(trace: Trace) -> ServingSteps:
    """Return the steps of serving that a trace annotates; of nested annotations, one with sums, else the outer one.

    Parameters
    ----------
    trace : Trace
        The trace.
    """
    codes, names = encode_text(trace.ranges["name"])
    parsed = [parse_serving_step(str(name)) for name in names]
    known = np.array([*(step is not None for step in parsed), False], dtype=bool)
    rows = user_ranges(trace.ranges)
    rows = rows[known[codes[rows]]]
    steps = tuple(dict.fromkeys(step for step in parsed if step is not None))
    numbers = {step: number for number, step in enumerate(steps)}
    of_name = np.array([numbers.get(step, -1) if step else -1 for step in parsed] or [0])
    rank, start = (integers(trace.ranges, name)[rows] for name in ("rank", "start_ns"))
    end, number = ends(trace.ranges)[rows], of_name[codes[rows]]
    has_sums = np.array([step.has_sums for step in steps] or [False])[number]
    kept = _disjoint(rank, start, end, np.lexsort((-end, start, ~has_sums)))
    return ServingSteps(rank[kept], start[kept], end[kept], number[kept], steps)


def _disjoint(rank: Ints, start: Ints, end: Ints, order: Ints) -> Ints:
    """Return the spans that overlap none before them in `order` on their rank, ordered by rank and start."""
    spans: dict[int, list[tuple[int, int]]] = {}
    kept = []
    for row in order.tolist():  # 1 us an annotation
        mine, span = spans.setdefault(int(rank[row]), []), (int(start[row]), int(end[row]))
        at = bisect(mine, span)
        if (not at or mine[at - 1][1] <= span[0]) and (at == len(mine) or span[1] <= mine[at][0]):
            mine.insert(at, span)
            kept.append(row)
    rows = np.array(kept, dtype=np.int64)
    return rows[np.lexsort((start[rows], rank[rows]))]
