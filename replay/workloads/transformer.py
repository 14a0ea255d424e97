"""The operators of transformers, on one device or split over several.

The operators of a training job on one tensor-parallel rank, forward and backward: Megatron-LM's transformer with its
fused kernels, or BERT as PyTorch runs it.

Sources: Megatron-LM (arXiv 1909.08053), section 3: a layer's two blocks each have a column-parallel product, then a
row-parallel one whose results are added up by an all-reduce; backward, the gradient of the block's input is. The
vocabulary is split too (arXiv 2104.04473, section 3). In Megatron-LM mask and softmax are one kernel, bias and GELU
one, bias, dropout and residual one.

The operators of a transformer's forward pass, as PyTorch runs them one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from replay.graph.operators import rowwise, streaming
from replay.workloads.architecture import (
    Step,
    Transformer,
    backward,
    checked_size,
    column_sums,
    product,
    rows,
    stream,
    waited,
)

#: The vocabulary is filled up to a multiple of this for each rank.
_VOCABULARY_UNIT = 128
_MASK_BYTES, _FP32_BYTES = 1, 4


@dataclass(frozen=True)
class Block:
    """Operators of a part of the model for one micro-batch.

    Parameters
    ----------
    forward, backward : tuple of Step
        Collectives among them.
    weights : int
        Elements of its parameters on this rank.
    tensors : int
        Parameters, which the optimizer goes through.
    """

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    weights: int = 0
    tensors: int = 0


@dataclass(frozen=True)
class Pass:
    """How a model is run.

    Parameters
    ----------
    batch, length : int
        Sequences, and tokens of each.
    training : bool
        Whether dropout is on and a training head is used.
    size : int
        Bytes of an element.
    ranks : int
        Ranks that share a layer.
    sequence_parallel : bool
        Whether the ranks share the tokens between their blocks: each all-reduce is a reduce-scatter and an all-gather.

    Raises
    ------
    InvalidInputError
        A size is no whole number, below one or above 2^31.
    """

    batch: int
    length: int
    training: bool = False
    size: int = 4
    ranks: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "length", "size", "ranks"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.length


def padded_vocabulary(model: Transformer, ranks: int) -> int:
    """Return the vocabulary, filled up to a multiple of 128 for each of `ranks`.

    Examples
    --------
    >>> from replay.workloads.architecture import Transformer
    >>> padded_vocabulary(Transformer("m", "megatron", 1, 64, 1, 256, 50257), 8)
    51200
    """
    unit = _VOCABULARY_UNIT * ranks
    return -(-model.vocabulary // unit) * unit


def exchange(kind: str, elements: int, size: int = 2) -> Step:
    """Return a collective.

    Parameters
    ----------
    kind : str
        Kind, such as ``"all_reduce"``.
    elements : int
        Elements of the whole buffer: what an all-gather returns, and a reduce-scatter takes.
    size : int
        Bytes of an element.
    """
    moved = float(elements * size)
    return Step(f"nccl:{kind}", streaming("copy", moved, moved, elements, size), collective=kind)


#: Styles of implementation that `layer_block`, `embedding_block` and `head_block` know.
TRAINED_STYLES = ("megatron", "bert")
#: Positions and kinds of sentence that BERT embeds (arXiv 1810.04805, section 3).
_BERT_POSITIONS, _BERT_SEGMENTS = 512, 2
#: Share of the tokens that BERT predicts: 20 of 128, 80 of 512 (`max_predictions_per_seq` of its reference code).
_PREDICTED = 5 / 32


def layer_block(model: Transformer, run: Pass) -> Block:
    """Return one layer.

    Examples
    --------
    >>> from replay.workloads.architecture import Transformer
    >>> model = Transformer("m", "megatron", 1, 1024, 16, 4096, 51200)
    >>> [sum(bool(s.collective) for s in layer_block(model, Pass(1, 1024, size=2, ranks=n)).forward) for n in (1, 2)]
    [0, 2]
    """
    hidden, wide, is_bert = model.hidden, model.feedforward, model.style == "bert"
    block = _normalised_after if is_bert else _parallel
    attention = block(model, run, _bert_attention(model, run) if is_bert else _attention(model, run))
    feedforward = block(model, run, _bert_feedforward(model, run) if is_bert else _feedforward(model, run))
    weights = (4 * hidden * hidden + 3 * hidden + 2 * hidden * wide + wide) // run.ranks + 6 * hidden
    return Block(
        (*attention.forward, *feedforward.forward),
        (*feedforward.backward, *attention.backward),
        weights,
        tensors=16 if is_bert else 12,
    )


def _normalised_after(model: Transformer, run: Pass, inner: Sequence[Step]) -> Block:
    """A block of BERT: its operators, the sum over ranks, then dropout, residual and normalisation."""
    elements, last = run.tokens * model.hidden, _bert_closing(model, run)
    meet = [exchange("all_reduce", elements, run.size)] if run.ranks > 1 else []
    return Block(
        (*inner, *meet, *last),
        (*backward(last), *backward(inner), *meet, _add(run, elements)),
    )


def _parallel(model: Transformer, run: Pass, inner: Sequence[Step]) -> Block:
    """A normalisation, the block's operators, the sum over ranks, then bias, dropout and residual."""
    if run.sequence_parallel and run.ranks > 1:
        return _sequence_parallel(model, run, inner)
    elements = run.tokens * model.hidden
    first = [_norm(model, run)]
    last = [_bias_dropout_add(run, elements, model.hidden)]
    meet = [exchange("all_reduce", elements, run.size)] if run.ranks > 1 else []
    return Block(
        (*first, *inner, *meet, *last),
        (*backward(last), *backward(inner), *meet, *backward(first), _add(run, elements)),
    )


def _sequence_parallel(model: Transformer, run: Pass, inner: Sequence[Step]) -> Block:
    """As `_parallel`, with normalisation, dropout and residual of a rank's share of the tokens.

    The gradient of the first product's input is scattered before the gradient of its weights is computed.

    Source: arXiv 2205.05198, section 4.2.
    """
    elements, shared = run.tokens * model.hidden, replace(run, length=max(run.length // run.ranks, 1))
    first, last = [_norm(model, shared)], [_bias_dropout_add(shared, shared.tokens * model.hidden, model.hidden)]
    gather, scatter = (exchange(kind, elements, run.size) for kind in ("all_gather", "reduce_scatter"))
    of_input, *of_weights = backward(inner[:1])
    return Block(
        (*first, gather, *inner, scatter, *last),
        (
            *(*backward(last), gather, *backward(inner[1:]), of_input, scatter, *of_weights),
            *(*backward(first), _add(shared, shared.tokens * model.hidden)),
        ),
    )


def _attention(model: Transformer, run: Pass) -> list[Step]:
    heads = max(run.batch * model.heads // run.ranks, 1)
    length, width, size = run.length, model.width, run.size
    local = max(model.hidden // run.ranks, 1)
    return [
        _linear(run, model.hidden, 3 * local),
        product("aten::baddbmm", heads, length, length, width, size),
        *_masked_softmax(heads, length, size),
        _parallel_dropout(heads * length * length, size),
        product("aten::bmm", heads, length, width, length, size),
        stream("aten::copy_", run.tokens * local, size=size),
        _linear(run, local, model.hidden, bias=False),
    ]


def _feedforward(model: Transformer, run: Pass) -> list[Step]:
    local = max(model.feedforward // run.ranks, 1)
    gelu = stream("bias_gelu", run.tokens * local, back=3, size=run.size)
    gelu = replace(gelu, gradient=(*gelu.gradient, column_sums(run.tokens, local, run.size)))
    return [_linear(run, model.hidden, local, bias=False), gelu, _linear(run, local, model.hidden, bias=False)]


def _masked_softmax(heads: int, length: int, size: int) -> list[Step]:
    """Scale, mask and softmax: one kernel, or, of sizes that it is not made for, one by one in FP32.

    Source: Megatron-LM, megatron/model/fused_softmax.py: multiples of four heads (of all sequences) and of four tokens,
    17 to 2048 of them.
    """
    elements = heads * length * length
    if heads % 4 == 0 and length % 4 == 0 and 16 < length <= 2048:
        return [_softmax(heads * length, length, size)]
    converted = 1 + _FP32_BYTES / size
    to_or_from = stream("aten::to", elements, arrays=converted, back=converted, size=size)
    scaled, masked = (stream(f"aten::{name}", elements, size=_FP32_BYTES) for name in ("mul", "masked_fill_"))
    return [to_or_from, scaled, masked, _softmax(heads * length, length, _FP32_BYTES), to_or_from]


def _softmax(count: int, columns: int, size: int) -> Step:
    """Backward it reads its result and the gradient."""
    back = rowwise("softmax", count, columns, size, backward=True)
    return Step("aten::softmax", rowwise("softmax", count, columns, size), (back,))


def _parallel_dropout(elements: int, size: int) -> Step:
    """It writes a mask of bytes, which the gradient is multiplied with."""
    share = _MASK_BYTES / size
    return stream("aten::native_dropout", elements, arrays=2 + share, back=2 + share, size=size)


def _bias_dropout_add(run: Pass, elements: int, hidden: int) -> Step:
    share = _MASK_BYTES / run.size
    step = stream("bias_dropout_add", elements, arrays=3 + share, back=2 + share, size=run.size)
    return replace(step, gradient=(*step.gradient, column_sums(run.tokens, hidden, run.size)))


def embedding_block(model: Transformer, run: Pass) -> Block:
    """Return the embedding of tokens and positions, with its dropout."""
    elements, size = run.tokens * model.hidden, run.size
    meet = [exchange("all_reduce", elements, size)] if run.ranks > 1 else []
    looked_up = _embedding(run, model.hidden)
    weights = padded_vocabulary(model, run.ranks) // run.ranks * model.hidden
    grown = stream("aten::add_", weights, arrays=3, back=0, size=size)
    if model.style == "bert":
        lookups, rest = [looked_up] * 3, [*[_add(run, elements)] * 2, _norm(model, run), *_dropout(run, elements)]
        others, tensors = (_BERT_POSITIONS + _BERT_SEGMENTS + 2) * model.hidden, 5
    else:
        lookups, rest = [looked_up] * 2, [_add(run, elements), _parallel_dropout(elements, size)]
        others, tensors = run.length * model.hidden, 2
    back = (*backward(rest), *backward(lookups), grown)
    return Block((*lookups, *meet, *rest), back, weights + others, tensors)


def head_block(model: Transformer, run: Pass, *, shared: bool) -> Block:
    """Return the last normalisation, the logits and the loss.

    Parameters
    ----------
    model : Transformer
        The model.
    run : Pass
        How the model is run.
    shared : bool
        Whether the embedding's weights are on the same rank, so that they are not stored twice.
    """
    if model.style == "bert":
        return _bert_loss(model, run, shared=shared)
    local = padded_vocabulary(model, run.ranks) // run.ranks
    norm = [_norm(model, run)]
    logits = [product("aten::mm", 1, run.tokens, local, model.hidden, run.size, weights=local * model.hidden)]
    few = [exchange("all_reduce", run.tokens, _FP32_BYTES)] if run.ranks > 1 else []
    meet = [exchange("all_reduce", run.tokens * model.hidden, run.size)] if run.ranks > 1 else []
    loss = _cross_entropy(run.tokens * local)
    weights = 2 * model.hidden + (0 if shared else local * model.hidden)
    return Block(
        (*norm, *logits, *loss[:2], *few, *loss[2:4], *few, *loss[4:], *few),
        (*backward(loss), *backward(logits), *meet, *backward(norm)),
        weights,
        tensors=2 if shared else 3,
    )


def _bert_loss(model: Transformer, run: Pass, *, shared: bool) -> Block:
    """Which sentence follows, and the words at the masked positions; the loss is computed in FP32."""
    hidden, size = model.hidden, run.size
    local = padded_vocabulary(model, run.ranks) // run.ranks
    masked = max(round(run.tokens * _PREDICTED), 1)
    picked = stream("aten::index", masked * hidden, size=size)
    pooled, words = _bert_head(model, run, masked=masked, vocabulary=local)
    to_fp32 = [
        stream("aten::to", masked * local, arrays=1 + _FP32_BYTES / size, back=1 + _FP32_BYTES / size, size=size)
    ]
    loss = [*(to_fp32 if size < _FP32_BYTES else []), _softmax(masked, local, _FP32_BYTES)]
    few = [exchange("all_reduce", masked, _FP32_BYTES)] * 2 if run.ranks > 1 else []
    meet = [exchange("all_reduce", masked * hidden, size)] if run.ranks > 1 else []
    weights = 2 * hidden * hidden + 6 * hidden + 2 + local + (0 if shared else local * hidden)
    return Block(
        (*pooled, picked, *words, *loss, *few),
        (*backward(loss), *backward(words[-1:]), *meet, *backward([picked, *words[:-1]]), *backward(pooled)),
        weights,
        tensors=9 if shared else 10,
    )


def _cross_entropy(elements: int) -> list[Step]:
    """Logits are converted to FP32; largest, difference, exponential, sum, share; backward a product, and back."""
    converted = stream("aten::to", elements, arrays=3, back=3, size=2)
    names = (("max", 1.0, 0), ("sub_", 2.0, 0), ("exp", 2.0, 0), ("sum", 1.0, 0), ("div_", 2.0, 2.0))
    return [converted, *(_pass(f"aten::{name}", elements, arrays, back) for name, arrays, back in names)]


def _pass(name: str, elements: int, arrays: float, back: float) -> Step:
    """FP32; one array is only read."""
    if arrays > 1:
        return stream(name, elements, arrays, back, _FP32_BYTES)
    return Step(name, streaming("reduction", float(elements * _FP32_BYTES), 0.0, elements, _FP32_BYTES))


def forward(model: Transformer, run: Pass) -> list[Step]:
    """List the operators of a forward pass, in order, every layer written out (`tally` only counts them).

    Examples
    --------
    >>> from replay.workloads.architecture import find_transformer, load_transformers
    >>> steps = forward(find_transformer("bert_large", load_transformers()), Pass(8, 512))
    >>> f"{sum(step.operator.flops for step in steps):.3g}"
    '2.69e+12'
    """
    return _FORWARD[model.style](model, run)


def _linear(run: Pass, inputs: int, outputs: int, *, bias: bool = True, count: int | None = None) -> Step:
    tokens = run.tokens if count is None else count
    name = "aten::addmm" if bias else "aten::mm"
    return product(name, 1, tokens, outputs, inputs, run.size, weights=inputs * outputs + outputs * bias)


def _add(run: Pass, elements: int) -> Step:
    return stream("aten::add", elements, arrays=3, back=0, size=run.size)


def _norm(model: Transformer, run: Pass) -> Step:
    return rows("aten::layer_norm", "normalization", run.tokens, model.hidden, run.size)


def _dropout(run: Pass, elements: int) -> list[Step]:
    """Forward it writes a mask of bytes too; backward the mask is converted, scaled and multiplied with."""
    if not run.training:
        return []
    mask = 1 / run.size
    return [stream("aten::native_dropout", elements, arrays=2 + mask, back=6 + mask, size=run.size)]


def _embedding(run: Pass, hidden: int) -> Step:
    return stream("aten::embedding", run.tokens * hidden, size=run.size)


def _attend(model: Transformer, run: Pass, masked: list[Step]) -> list[Step]:
    """Scores, masks, softmax, and the weighted sum of values; operands are copied into heads."""
    heads, length, width = max(run.batch * model.heads // run.ranks, 1), run.length, model.width
    # Copies of a projection into the order of heads, or back.
    copy = stream("aten::copy_", heads * length * width, size=run.size)
    return [
        *[copy] * 2,
        product("aten::bmm", heads, length, length, width, run.size),
        *masked,
        rows("aten::softmax", "softmax", heads * length, length, run.size),
        *_dropout(run, heads * length * length),
        copy,
        product("aten::bmm", heads, length, width, length, run.size),
        copy,
    ]


def _scores(model: Transformer, run: Pass) -> int:
    return max(run.batch * model.heads // run.ranks, 1) * run.length * run.length


def _bert_attention(model: Transformer, run: Pass) -> list[Step]:
    local, scores = model.hidden // run.ranks, _scores(model, run)
    masked = [stream("aten::div", scores, size=run.size), stream("aten::add", scores, back=0, size=run.size)]
    return [
        *[_linear(run, model.hidden, local)] * 3,
        *_attend(model, run, masked),
        _linear(run, local, model.hidden),
    ]


def _bert_feedforward(model: Transformer, run: Pass) -> list[Step]:
    local = model.feedforward // run.ranks
    return [
        _linear(run, model.hidden, local),
        stream("aten::gelu", run.tokens * local, back=3, size=run.size),
        _linear(run, local, model.hidden),
    ]


def _bert_closing(model: Transformer, run: Pass) -> list[Step]:
    elements = run.tokens * model.hidden
    return [*_dropout(run, elements), _add(run, elements), _norm(model, run)]


def _bert(model: Transformer, run: Pass) -> list[Step]:
    elements, closing = run.tokens * model.hidden, _bert_closing(model, run)
    layer = [*_bert_attention(model, run), *closing, *_bert_feedforward(model, run), *closing]
    first = [*[_embedding(run, model.hidden)] * 3, *[_add(run, elements)] * 2, _norm(model, run)]
    pooled, words = _bert_head(model, run, masked=run.tokens, vocabulary=model.vocabulary)
    last = [*pooled, *(words if run.training else [])]
    return [*first, *_dropout(run, elements), *layer * model.layers, *last]


def _bert_head(model: Transformer, run: Pass, *, masked: int, vocabulary: int) -> tuple[list[Step], list[Step]]:
    """Return the operators that score the first tokens, and those that predict `masked` tokens."""
    hidden = model.hidden
    return [_linear(run, hidden, hidden, count=run.batch), _linear(run, hidden, 2, count=run.batch)], [
        _linear(run, hidden, hidden, count=masked),
        stream("aten::gelu", masked * hidden, back=3, size=run.size),
        rows("aten::layer_norm", "normalization", masked, hidden, run.size),
        _linear(run, hidden, vocabulary, count=masked),
    ]


def _gelu_of_eight(run: Pass, elements: int) -> list[Step]:
    """GELU by its formula with a hyperbolic tangent: the gradient of a power takes three operators."""
    names = (("mul", 2, 2), ("pow", 2, 7), ("mul", 2, 2), ("add", 3, 0), ("mul", 2, 2), ("tanh", 2, 3), ("add", 2, 0))
    steps = [stream(f"aten::{name}", elements, arrays, back, run.size) for name, arrays, back in names]
    return [*steps, stream("aten::mul", elements, 3, 6, run.size)]


def _decoder(
    model: Transformer, run: Pass, projections: list[Step], masked: list[Step], activation: list[Step]
) -> list[Step]:
    """Return the layers of a decoder, with a normalisation before each block, and its head."""
    hidden = model.hidden
    closing = [*_dropout(run, run.tokens * hidden), _add(run, run.tokens * hidden)]
    layer = [
        _norm(model, run),
        *projections,
        *_attend(model, run, masked),
        _linear(run, hidden, hidden),
        *closing,
        _norm(model, run),
        _linear(run, hidden, model.feedforward),
        *activation,
        _linear(run, model.feedforward, hidden),
        *closing,
    ]
    return [*layer * model.layers, _norm(model, run), _linear(run, hidden, model.vocabulary, bias=False)]


def _gpt2(model: Transformer, run: Pass) -> list[Step]:
    hidden, elements, scores = model.hidden, run.tokens * model.hidden, _scores(model, run)
    masked = [stream(f"aten::{name}", scores, size=run.size) for name in ("div", "where")]
    activation = _gelu_of_eight(run, run.tokens * model.feedforward)
    first = [*[_embedding(run, hidden)] * 2, _add(run, elements), *_dropout(run, elements)]
    return [*first, *_decoder(model, run, [_linear(run, hidden, 3 * hidden)], masked, activation)]


def _opt(model: Transformer, run: Pass) -> list[Step]:
    hidden, elements, scores = model.hidden, run.tokens * model.hidden, _scores(model, run)
    masked = [stream(f"aten::{name}", scores, back=back, size=run.size) for name, back in (("add", 0), ("maximum", 3))]
    projections = [*[_linear(run, hidden, hidden)] * 3, stream("aten::mul", elements, size=run.size)]
    activation = [stream("aten::relu", run.tokens * model.feedforward, back=3, size=run.size)]
    first = [*[_embedding(run, hidden)] * 2, _add(run, elements)]
    return [*first, *_decoder(model, run, projections, masked, activation)]


def _root_mean_square(model: Transformer, run: Pass) -> list[Step]:
    """A normalisation without a kernel of its local: a power, a mean, and two products."""
    elements = run.tokens * model.hidden
    back = (("pow", 2, 7), ("mean", 1, 2), ("mul", 2, 3), ("mul", 2, 3))
    return [stream(f"aten::{name}", elements, max(arrays, 2), grad, run.size) for name, arrays, grad in back]


#: Arrays that adding a position bias goes through: its heads lie side by side in memory, so that an element of a score
#: fetches a sector of 32 bytes for 4 (scores read and written, eight of the bias).
_BIASED = 10.0


def _switch_attention(model: Transformer, run: Pass, arrays: float) -> list[Step]:
    hidden, scores = model.hidden, _scores(model, run)
    return [
        *_root_mean_square(model, run),
        *[_linear(run, hidden, hidden, bias=False)] * 3,
        *_attend(model, run, [stream("aten::add_", scores, arrays=arrays, back=0, size=run.size)]),
        _linear(run, hidden, hidden, bias=False),
        *_dropout(run, run.tokens * hidden),
        _add(run, run.tokens * hidden),
    ]


def _switch_feedforward(model: Transformer, run: Pass, experts: int) -> list[Step]:
    """A gated product, as in T5 1.1 and in Switch Transformer (arXiv 2101.03961, table 9)."""
    hidden, tokens = model.hidden, run.tokens
    routed = _routed(model, run, experts) if experts > 1 else _gated(model, run, tokens)
    closing = [*_dropout(run, tokens * hidden), _add(run, tokens * hidden)]
    return [*_root_mean_square(model, run), *routed, *closing]


def _gated(model: Transformer, run: Pass, tokens: int) -> list[Step]:
    hidden, wide = model.hidden, model.feedforward
    return [
        *[_linear(run, hidden, wide, bias=False, count=tokens)] * 2,
        stream("aten::gelu", tokens * wide, back=3, size=run.size),
        stream("aten::mul", tokens * wide, arrays=3, back=6, size=run.size),
        _linear(run, wide, hidden, bias=False, count=tokens),
    ]


def _routed(model: Transformer, run: Pass, experts: int) -> list[Step]:
    """Each token goes to one expert, so that experts share the tokens; the router picks and puts them back.

    The host waits for the tokens of each expert twice, to gather and to put back, so that small operators start late.
    """
    hidden, tokens = model.hidden, run.tokens
    each = max(tokens // experts, 1)
    moved = stream("aten::index", each * hidden, size=run.size)
    picked = waited("aten::nonzero", tokens, size=run.size)
    router = [
        _linear(run, hidden, experts, bias=False),
        rows("aten::softmax", "softmax", tokens, experts, run.size),
        *[stream(f"aten::{name}", tokens * experts, size=run.size) for name in ("argmax", "one_hot", "cumsum", "mul")],
        stream("aten::clone", tokens * hidden, size=run.size),
    ]
    chosen = [picked, moved, *_gated(model, run, each), picked, moved]
    scaled = stream("aten::mul", tokens * hidden, arrays=2, back=3, size=run.size)
    return [*router, *chosen * experts, scaled]


def _switch(model: Transformer, run: Pass) -> list[Step]:
    """Encoder, then decoder, whose layers attend to the encoder's result too, with a bias of zeros."""
    dense, sparse = (_switch_feedforward(model, run, experts) for experts in (1, model.experts))
    itself, crossed = (_switch_attention(model, run, arrays) for arrays in (_BIASED, 3.0))
    encoder = [step for i in range(model.layers) for step in (*itself, *(sparse if i % 2 else dense))]
    decoder = [step for i in range(model.layers) for step in (*itself, *crossed, *(sparse if i % 2 else dense))]
    embedded = [_embedding(run, model.hidden)] * 2
    return [*embedded, *encoder, *decoder, _linear(run, model.hidden, model.vocabulary, bias=False)]


def _megatron(model: Transformer, run: Pass) -> list[Step]:
    """All on one rank."""
    layers = layer_block(model, run).forward * model.layers
    return [*embedding_block(model, run).forward, *layers, *head_block(model, run, shared=True).forward]


_FORWARD: Mapping[str, Callable[[Transformer, Pass], list[Step]]] = MappingProxyType(
    {"bert": _bert, "gpt2": _gpt2, "opt": _opt, "switch": _switch, "megatron": _megatron}
)
