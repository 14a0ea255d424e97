"""FLOP and bytes of the operators that engines serve language models with: rules of `datasets/operators.toml`.

Attention over a cache takes the lengths of its requests from the step of serving (`profilers.trace.serving`), since a
trace has no values of tensors. Experts take the sizes of their weights from shapes; where a call hides its weights,
those of the published model with its hidden size and number of experts (`datasets/experts.toml`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import msgspec

from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.serving import PhaseTokens, ServingStep
from replay.costs.calls import Call, UnknownShapeError, require
from replay.graph.operators import (
    AttentionHeads,
    Operator,
    batched_matmul,
    request_attention,
    routed_experts,
    streaming,
)

#: Bytes of an element of the output of a product of 8-bit matrices.
_OUTPUT_BYTES = 2
_NO_REQUEST = PhaseTokens()
#: Engines fill sizes up to a multiple of this for narrow weights.
_UNIT = 256


def serving_attention(
    call: Call, *, query: int = 0, key: int = 1, heads_at: int = -2, kv_heads: int | None = None,
    window: int | None = None,
) -> Operator:  # fmt: skip
    """Return attention over the cached keys of the requests of a step.

    Parameters
    ----------
    call : Call
        Call with its step. The last three dimensions of the query are tokens, heads and width.
    query, key : int
        Arguments with queries, and with keys or their cache; values come after keys.
    heads_at : int
        Dimension of the keys that counts their heads.
    kv_heads : int, optional
        Argument with the number of heads of keys, if the layout of the cache hides it.
    window : int, optional
        Argument with the most tokens that a query attends to.
    """
    queries, keys = call.sizes(query, key)
    require(call.step is not None and call.step.requests > 0 and len(queries) > 2 and len(keys) > 2)
    *rows, count, width = queries
    groups = call.number(kv_heads) or keys[heads_at]
    value = call.shape(key + 1)
    value_width = value[-1] if value and value[:-1] == keys[:-1] else width
    sizes = {"query_bytes": call.element_bytes(query), "kv_bytes": call.element_bytes(key)}
    require(count % groups == 0)
    heads = AttentionHeads(count, groups, width, value_width, **sizes, window=call.number(window))
    prefill, decode = _attending(call.step or ServingStep(), prod(rows))
    require(all(side.pairs is not None for side in (prefill, decode)))
    return request_attention(prefill, decode, heads)


def _attending(step: ServingStep, rows: int) -> tuple[PhaseTokens, PhaseTokens]:
    """Return the requests whose queries fill `rows`: of both phases, of one, or of one with padding."""
    prefill, decode = step.prefill, step.decode
    for pair in ((prefill, decode), (prefill, _NO_REQUEST), (_NO_REQUEST, decode)):
        if sum(side.query_tokens or 0 for side in pair) == rows:
            return pair
    require(step.tokens is not None and rows > step.tokens and step.phase != "mixed")
    return prefill, decode


def linear_product(call: Call, *, x: int = 0, weight: int = 1, bias: int | None = None) -> Operator:
    """Return the product of rows of tokens with a weight of (out, in); results of 8-bit operands have two bytes."""
    rows, matrix = call.sizes(x, weight)
    require(len(matrix) == 2 and rows[-1] == matrix[1])
    size = call.element_bytes(x)
    added = prod(call.shape(bias) or (0,)) if bias is not None else 0
    product = batched_matmul(1, prod(rows[:-1]), matrix[0], matrix[1], size, bias=added)
    outputs = prod(rows[:-1]) * matrix[0]
    return replace(product, bytes_written=outputs * max(size, _OUTPUT_BYTES))


def output_first_product(call: Call) -> Operator:
    """Return the product of the second and the third argument, written to the first."""
    output, a, b = call.sizes(0, 1, 2)
    require(len(a) == len(b) == 2 and output[-1] in b and a[-1] in b)
    m, k, n = prod(output[:-1]), a[-1], output[-1]
    product = batched_matmul(1, m, n, k, call.element_bytes(1))
    return replace(product, bytes_written=m * n * call.element_bytes(0))


def expert_weights(call: Call, *, x: int = 0, first: int = 1, topk: int = 3, chosen: int | None = None) -> Operator:
    """Return a layer of experts whose weights are arguments: (experts, inter or twice that, hidden), and back.

    Parameters
    ----------
    call : Call
        The call.
    x, first : int
        Arguments with tokens, and with the first weight; the second comes after it.
    topk : int
        Argument with the choices of each token, (tokens, topk).
    chosen : int, optional
        Argument with the number of choices, where no tensor has it.
    """
    tokens, up, down = call.sizes(x, first, first + 1)
    require(len(up) == len(down) == 3 and up[0] == down[0])
    hidden, inter, wide = tokens[-1], down[2], up[1]
    packed = max(hidden // up[2], 1)  # weights of 4 bits, two or more in an element
    inter *= packed
    choices = call.number(chosen) or (call.shape(topk) or (0, 0))[-1]
    require(choices > 0 and wide in (inter, 2 * inter))
    layer = (hidden, inter, min(choices, up[0]), up[0])
    size = call.element_bytes(x)
    return routed_experts(
        prod(tokens[:-1]), layer, size, weight_bytes=call.element_bytes(first) / packed, gated=wide == 2 * inter
    )


def grouped_product(call: Call) -> Operator:
    """Return a product of rows with the weights of their experts: one of those of a layer of experts.

    The weight is the first argument of three dimensions, (experts, out, in); the result the last, (tokens, topk, out).
    """
    shapes = [shape for i in range(len(call.shapes)) if (shape := call.shape(i)) is not None and len(shape) == 3]
    require(len(shapes) > 1 and shapes[-1][2] == shapes[0][1])
    (experts, out, inner), (tokens, topk, _) = shapes[0], shapes[-1]
    product = batched_matmul(1, tokens * topk, out, inner, call.element_bytes())
    active = experts * (1 - (1 - min(topk / experts, 1.0)) ** tokens)
    read = (tokens * topk * inner + active * out * inner) * call.element_bytes()
    return replace(product, bytes_read=read)


class _Model(msgspec.Struct, forbid_unknown_fields=True):
    """A row of `datasets/experts.toml`, whose head explains its keys."""

    model: str
    hidden: int
    inter: int
    experts: int
    topk: int
    weight_bytes: float
    source: str

    @property
    def widths(self) -> tuple[int, int]:
        """Hidden size, and the same filled up."""
        return self.hidden, _filled(self.hidden)


class _ModelFile(msgspec.Struct, forbid_unknown_fields=True):
    models: tuple[_Model, ...]


@cache
def _published_experts() -> tuple[_Model, ...]:
    file = dataset_path("experts.toml")
    return typed_table(read_toml(file, "published experts"), _ModelFile, str(file)).models


def _filled(size: int) -> int:
    """Return a size that an engine fills up for narrow weights."""
    return -(-size // _UNIT) * _UNIT


def hidden_experts(call: Call) -> Operator:
    """Return a layer of experts whose weights are no arguments, by the published model of its sizes.

    The arguments are the tokens, (tokens, hidden), and the scores of the router, (tokens, experts). It is unknown on
    several ranks, which may share the experts.
    """
    tokens, scores = call.sizes(0, 1)
    require(call.ranks == 1 and len(tokens) == len(scores) == 2 and tokens[0] == scores[0])
    hidden, experts = tokens[1], scores[1]
    model = next((each for each in _published_experts() if each.experts == experts and hidden in each.widths), None)
    if model is None:
        raise UnknownShapeError
    inter = model.inter if hidden == model.hidden else _filled(model.inter)
    layer = (hidden, inter, model.topk, experts)
    return routed_experts(tokens[0], layer, call.element_bytes(), weight_bytes=model.weight_bytes)


def moved(
    call: Call, *, kind: str, reads: Sequence[int], writes: Sequence[int], each: float = 1.0, rows: bool = False
) -> Operator:
    """Return an operator that reads and writes whole arguments once.

    Parameters
    ----------
    call : Call
        The call.
    kind : str
        Kind of the operator.
    reads, writes : sequence of int
        Arguments that are read, and written; one that was not recorded counts nothing. The first written is needed.
    each : float
        FLOP for each element of the first that is written.
    rows : bool
        Whether the dims are rows and columns, as of a normalisation, and not elements.
    """
    (first,) = call.sizes(writes[0])
    read, written = (sum(prod(call.shape(i) or (0,)) * call.element_bytes(i) for i in side) for side in (reads, writes))
    size = call.element_bytes(reads[0] if reads else writes[0])
    operator = streaming(kind, read, written, prod(first), size, each=each)
    return replace(operator, dims=(prod(first[:-1]), first[-1])) if rows else operator


def cache_write(call: Call, *, key: int = 0, cache: int = 2) -> Operator:
    """Return the copy of keys and values, arguments from `key` on, into their caches, arguments from `cache` on."""
    keys, values = call.sizes(key, key + 1)
    elements = prod(keys) + prod(values)
    size, stored = call.element_bytes(key), call.element_bytes(cache)
    return streaming("copy", elements * size, elements * stored, elements, size, each=0.0)


def gathered_rows(call: Call, *, index: int) -> Operator:
    """Return a lookup that reads as many elements as argument `index` has, and the index, repeated or not."""
    (chosen,) = call.sizes(index)
    elements, size = prod(chosen), call.element_bytes()
    read = elements * size + call.stored(index) * call.element_bytes(index)
    return streaming("embedding", read, elements * size, elements, size, each=0.0)


SERVING_RULES: tuple[Callable[..., Operator], ...] = (
    *(serving_attention, linear_product, output_first_product, expert_weights, grouped_product, hidden_experts),
    *(moved, cache_write, gathered_rows),
)
