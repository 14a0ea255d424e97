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
from dataclasses import replace
from types import MappingProxyType

from replay.workloads.architecture import (
    Step,
    Transformer,
    backward,
    column_sums,
    pointwise,
    product,
    rows,
    waited,
)
from replay.workloads.decoder import (
    DecoderBlock,
    DecoderPass,
    add,
    between_blocks,
    cross_entropy,
    exchange,
    expert_layer,
    flash_attention,
    in_fp8,
    kv_heads_of,
    linear,
    llama_embedding,
    llama_head,
    llama_layer,
    masked_softmax,
    padded_vocabulary,
    parallel_block,
    scored_attention,
    softmax,
)

_MASK_BYTES, _FP32_BYTES = 1, 4

#: Styles of implementation that `layer_block`, `embedding_block` and `head_block` know.
TRAINED_STYLES = ("megatron", "bert", "llama")
#: Positions and kinds of sentence that BERT embeds (arXiv 1810.04805, section 3).
_BERT_POSITIONS, _BERT_SEGMENTS = 512, 2
#: Share of the tokens that BERT predicts: 20 of 128, 80 of 512 (`max_predictions_per_seq` of its reference code).
_PREDICTED = 5 / 32


def layer_block(model: Transformer, run: DecoderPass, *, dense: bool = False) -> DecoderBlock:
    """Return one layer.

    Parameters
    ----------
    model : Transformer
        Sizes of the model.
    run : DecoderPass
        How the model is run.
    dense : bool
        Whether the layer has no experts though the model has.

    Examples
    --------
    >>> from replay.workloads.architecture import Transformer
    >>> model = Transformer("m", "megatron", 1, 1024, 16, 4096, 51200)
    >>> blocks = [layer_block(model, DecoderPass(1, 1024, size=2, ranks=n)) for n in (1, 2)]
    >>> [sum(bool(step.collective) for step in block.forward) for block in blocks]
    [0, 2]
    """
    if model.style == "llama":
        return llama_layer(model, run, dense=dense)
    return _bert_layer(model, run) if model.style == "bert" else _megatron_layer(model, run, dense=dense)


def _bert_layer(model: Transformer, run: DecoderPass) -> DecoderBlock:
    attention = _normalised_after(model, run, _bert_attention(model, run))
    inner = _feedforward if run.attention == "flash" else _bert_feedforward
    feedforward = _normalised_after(model, run, inner(model, run))
    return DecoderBlock(
        (*attention.forward, *feedforward.forward),
        (*feedforward.backward, *attention.backward),
        _layer_weights(model, run),
        tensors=16,
    )


def _layer_weights(model: Transformer, run: DecoderPass) -> int:
    hidden, wide = model.hidden, model.feedforward
    return (4 * hidden * hidden + 3 * hidden + 2 * hidden * wide + wide) // run.ranks + 6 * hidden


def _megatron_layer(model: Transformer, run: DecoderPass, *, dense: bool) -> DecoderBlock:
    between, hidden = between_blocks(run), model.hidden
    first = [_norm(model, between)]
    last = [_bias_dropout_add(between, between.tokens * hidden, hidden)]
    is_sparse = model.experts > 1 and not dense
    inner = expert_layer(model, run, is_gated=False) if is_sparse else _feedforward(model, run)
    attention = parallel_block(model, run, first, _attention(model, run), last)
    feedforward = parallel_block(model, run, first, inner, last)
    fewer = 2 * (model.heads - model.key_value_heads) * model.width * (hidden + 1) // run.ranks
    experts = sum(step.parameters for step in inner if step.operator.kind == "experts")
    dense_weights = _layer_weights(model, run) - fewer
    if is_sparse:
        dense_weights += sum(step.parameters for step in inner) - (2 * hidden + 1) * model.feedforward // run.ranks
    return DecoderBlock(
        (*attention.forward, *feedforward.forward),
        (*feedforward.backward, *attention.backward),
        dense_weights,
        tensors=12,
        expert_weights=experts,
    )


def _normalised_after(model: Transformer, run: DecoderPass, inner: Sequence[Step]) -> DecoderBlock:
    """A block of BERT: its operators, the sum over ranks, then dropout, residual and normalisation."""
    elements, inner = run.tokens * model.hidden, in_fp8(inner, run)
    is_fused = run.attention == "flash"
    last = (
        [_bias_dropout_add(run, elements, model.hidden), _norm(model, run)] if is_fused else _bert_closing(model, run)
    )
    meet = [exchange("all_reduce", elements, run.size)] if run.ranks > 1 else []
    return DecoderBlock(
        (*inner, *meet, *last),
        (*backward(last), *backward(inner), *meet, add(run, elements)),
    )


def _attention(model: Transformer, run: DecoderPass) -> list[Step]:
    heads = max(run.batch * model.heads // run.ranks, 1)
    local, keys = max(model.hidden // run.ranks, 1), run.length * run.context
    if run.attention == "flash":
        core = flash_attention(model, run)
    else:
        dropout = _parallel_dropout(heads * run.length * keys, run.size)
        core = scored_attention(model, run, [*masked_softmax(heads, run.length, keys, run.size), dropout])
    return [
        linear(run, model.hidden, local + 2 * kv_heads_of(model, run) * model.width),
        *core,
        linear(run, local, model.hidden, bias=False),
    ]


def _feedforward(model: Transformer, run: DecoderPass) -> list[Step]:
    local = max(model.feedforward // run.ranks, 1)
    gelu = pointwise("bias_gelu", run.tokens * local, back=3, size=run.size)
    gelu = replace(gelu, gradient=(*gelu.gradient, column_sums(run.tokens, local, run.size)))
    return [linear(run, model.hidden, local, bias=False), gelu, linear(run, local, model.hidden, bias=False)]


def _parallel_dropout(elements: int, size: int) -> Step:
    """It writes a mask of bytes, which the gradient is multiplied with."""
    share = _MASK_BYTES / size
    return pointwise("aten::native_dropout", elements, arrays=2 + share, back=2 + share, size=size)


def _bias_dropout_add(run: DecoderPass, elements: int, hidden: int) -> Step:
    share = _MASK_BYTES / run.size
    step = pointwise("bias_dropout_add", elements, arrays=3 + share, back=2 + share, size=run.size)
    return replace(step, gradient=(*step.gradient, column_sums(run.tokens, hidden, run.size)))


def embedding_block(model: Transformer, run: DecoderPass) -> DecoderBlock:
    """Return the embedding of tokens and positions, with its dropout."""
    if model.style == "llama":
        return llama_embedding(model, run)
    elements, size = run.tokens * model.hidden, run.size
    meet = [exchange("all_reduce", elements, size)] if run.ranks > 1 else []
    looked_up = _embedding(run, model.hidden)
    weights = padded_vocabulary(model, run.ranks) // run.ranks * model.hidden
    grown = pointwise("aten::add_", weights, arrays=3, back=0, size=size)
    if model.style == "bert":
        lookups, rest = [looked_up] * 3, [*[add(run, elements)] * 2, _norm(model, run), *_dropout(run, elements)]
        others, tensors = (_BERT_POSITIONS + _BERT_SEGMENTS + 2) * model.hidden, 5
    else:
        lookups, rest = [looked_up] * 2, [add(run, elements), _parallel_dropout(elements, size)]
        others, tensors = run.length * run.context * model.hidden, 2
    back = (*backward(rest), *backward(lookups), grown)
    return DecoderBlock((*lookups, *meet, *rest), back, weights + others, tensors)


def head_block(model: Transformer, run: DecoderPass, *, shared: bool) -> DecoderBlock:
    """Return the last normalisation, the logits and the loss.

    Parameters
    ----------
    model : Transformer
        The model.
    run : DecoderPass
        How the model is run.
    shared : bool
        Whether the embedding's weights are on the same rank, so that they are not stored twice.
    """
    if model.style == "bert":
        return _bert_loss(model, run, shared=shared)
    if model.style == "llama":
        return llama_head(model, run)
    local = padded_vocabulary(model, run.ranks) // run.ranks
    norm = [_norm(model, run)]
    logits = [product("aten::mm", 1, run.tokens, local, model.hidden, run.size, weights=local * model.hidden)]
    few = [exchange("all_reduce", run.tokens, _FP32_BYTES)] if run.ranks > 1 else []
    meet = [exchange("all_reduce", run.tokens * model.hidden, run.size)] if run.ranks > 1 else []
    loss = cross_entropy(run.tokens * local)
    weights = 2 * model.hidden + (0 if shared else local * model.hidden)
    return DecoderBlock(
        (*norm, *logits, *loss[:2], *few, *loss[2:4], *few, *loss[4:], *few),
        (*backward(loss), *backward(logits), *meet, *backward(norm)),
        weights,
        tensors=2 if shared else 3,
    )


def _bert_loss(model: Transformer, run: DecoderPass, *, shared: bool) -> DecoderBlock:
    """Which sentence follows, and the words at the masked positions; the loss is computed in FP32."""
    hidden, size = model.hidden, run.size
    local = padded_vocabulary(model, run.ranks) // run.ranks
    masked = max(round(run.tokens * _PREDICTED), 1)
    picked = pointwise("aten::index", masked * hidden, size=size)
    pooled, words = _bert_head(model, run, masked=masked, vocabulary=local)
    to_fp32 = [
        pointwise("aten::to", masked * local, arrays=1 + _FP32_BYTES / size, back=1 + _FP32_BYTES / size, size=size)
    ]
    loss = [*(to_fp32 if size < _FP32_BYTES else []), softmax(masked, local, _FP32_BYTES)]
    few = [exchange("all_reduce", masked, _FP32_BYTES)] * 2 if run.ranks > 1 else []
    meet = [exchange("all_reduce", masked * hidden, size)] if run.ranks > 1 else []
    weights = 2 * hidden * hidden + 6 * hidden + 2 + local + (0 if shared else local * hidden)
    return DecoderBlock(
        (*pooled, picked, *words, *loss, *few),
        (*backward(loss), *backward(words[-1:]), *meet, *backward([picked, *words[:-1]]), *backward(pooled)),
        weights,
        tensors=9 if shared else 10,
    )


def forward(model: Transformer, run: DecoderPass) -> list[Step]:
    """List the operators of a forward pass, in order, every layer written out (`tally` only counts them).

    Examples
    --------
    >>> from replay.workloads.architecture import find_transformer, load_transformers
    >>> steps = forward(find_transformer("bert_large", load_transformers()), DecoderPass(8, 512))
    >>> f"{sum(step.operator.flops for step in steps):.3g}"
    '2.69e+12'
    """
    return _FORWARD[model.style](model, run)


def _norm(model: Transformer, run: DecoderPass) -> Step:
    return rows("aten::layer_norm", "normalization", run.tokens, model.hidden, run.size)


def _dropout(run: DecoderPass, elements: int) -> list[Step]:
    """Forward it writes a mask of bytes too; backward the mask is converted, scaled and multiplied with."""
    if not run.training:
        return []
    mask = 1 / run.size
    return [pointwise("aten::native_dropout", elements, arrays=2 + mask, back=6 + mask, size=run.size)]


def _embedding(run: DecoderPass, hidden: int) -> Step:
    return pointwise("aten::embedding", run.tokens * hidden, size=run.size)


def _attend(model: Transformer, run: DecoderPass, masked: list[Step]) -> list[Step]:
    """Scores, masks, softmax, and the weighted sum of values; operands are copied into heads."""
    heads, length, width = max(run.batch * model.heads // run.ranks, 1), run.length, model.width
    # Copies of a projection into the order of heads, or back.
    copy = pointwise("aten::copy_", heads * length * width, size=run.size)
    core = [
        product("aten::bmm", heads, length, length, width, run.size),
        *masked,
        rows("aten::softmax", "softmax", heads * length, length, run.size),
        *_dropout(run, heads * length * length),
        copy,
        product("aten::bmm", heads, length, width, length, run.size),
    ]
    return [*[copy] * 2, *(replace(step, of_scores=True) for step in core), copy]


def _scores(model: Transformer, run: DecoderPass) -> int:
    return max(run.batch * model.heads // run.ranks, 1) * run.length * run.length


def _bert_attention(model: Transformer, run: DecoderPass) -> list[Step]:
    local, scores = model.hidden // run.ranks, _scores(model, run)
    if run.attention == "flash":
        both = [_both_ways(step) for step in flash_attention(model, run)]
        return [linear(run, model.hidden, 3 * local), *both, linear(run, local, model.hidden, bias=False)]
    masked = [pointwise("aten::div", scores, size=run.size), pointwise("aten::add", scores, back=0, size=run.size)]
    return [
        *[linear(run, model.hidden, local)] * 3,
        *_attend(model, run, masked),
        linear(run, local, model.hidden),
    ]


def _both_ways(step: Step) -> Step:
    """Return attention to all tokens, instead of those before, as that to so many more keys."""
    if step.collective:
        return step
    sequences, queries, keys, *others = step.operator.dims
    before = queries * keys - queries * (queries - 1) // 2
    dims = (sequences, queries, keys + (queries - 1) // 2, *others)
    forward, *back = (
        replace(each, flops=each.flops * queries * keys / before, dims=dims) for each in (step.operator, *step.gradient)
    )
    return replace(step, operator=forward, gradient=tuple(back))


def _bert_feedforward(model: Transformer, run: DecoderPass) -> list[Step]:
    local = model.feedforward // run.ranks
    return [
        linear(run, model.hidden, local),
        pointwise("aten::gelu", run.tokens * local, back=3, size=run.size),
        linear(run, local, model.hidden),
    ]


def _bert_closing(model: Transformer, run: DecoderPass) -> list[Step]:
    elements = run.tokens * model.hidden
    return [*_dropout(run, elements), add(run, elements), _norm(model, run)]


def _bert(model: Transformer, run: DecoderPass) -> list[Step]:
    elements, closing = run.tokens * model.hidden, _bert_closing(model, run)
    layer = [*_bert_attention(model, run), *closing, *_bert_feedforward(model, run), *closing]
    first = [*[_embedding(run, model.hidden)] * 3, *[add(run, elements)] * 2, _norm(model, run)]
    pooled, words = _bert_head(model, run, masked=run.tokens, vocabulary=model.vocabulary)
    last = [*pooled, *(words if run.training else [])]
    return [*first, *_dropout(run, elements), *layer * model.layers, *last]


def _bert_head(model: Transformer, run: DecoderPass, *, masked: int, vocabulary: int) -> tuple[list[Step], list[Step]]:
    """Return the operators that score the first tokens, and those that predict `masked` tokens."""
    hidden = model.hidden
    return [linear(run, hidden, hidden, count=run.batch), linear(run, hidden, 2, count=run.batch)], [
        linear(run, hidden, hidden, count=masked),
        pointwise("aten::gelu", masked * hidden, back=3, size=run.size),
        rows("aten::layer_norm", "normalization", masked, hidden, run.size),
        linear(run, hidden, vocabulary, count=masked),
    ]


def _gelu_of_eight(run: DecoderPass, elements: int) -> list[Step]:
    """GELU by its formula with a hyperbolic tangent: the gradient of a power takes three operators."""
    names = (("mul", 2, 2), ("pow", 2, 7), ("mul", 2, 2), ("add", 3, 0), ("mul", 2, 2), ("tanh", 2, 3), ("add", 2, 0))
    steps = [pointwise(f"aten::{name}", elements, arrays, back, run.size) for name, arrays, back in names]
    return [*steps, pointwise("aten::mul", elements, 3, 6, run.size)]


def _decoder(
    model: Transformer, run: DecoderPass, projections: list[Step], masked: list[Step], activation: list[Step]
) -> list[Step]:
    """Return the layers of a decoder, with a normalisation before each block, and its head."""
    hidden = model.hidden
    closing = [*_dropout(run, run.tokens * hidden), add(run, run.tokens * hidden)]
    layer = [
        _norm(model, run),
        *projections,
        *_attend(model, run, masked),
        linear(run, hidden, hidden),
        *closing,
        _norm(model, run),
        linear(run, hidden, model.feedforward),
        *activation,
        linear(run, model.feedforward, hidden),
        *closing,
    ]
    return [*layer * model.layers, _norm(model, run), linear(run, hidden, model.vocabulary, bias=False)]


def _gpt2(model: Transformer, run: DecoderPass) -> list[Step]:
    hidden, elements, scores = model.hidden, run.tokens * model.hidden, _scores(model, run)
    masked = [pointwise(f"aten::{name}", scores, size=run.size) for name in ("div", "where")]
    activation = _gelu_of_eight(run, run.tokens * model.feedforward)
    first = [*[_embedding(run, hidden)] * 2, add(run, elements), *_dropout(run, elements)]
    return [*first, *_decoder(model, run, [linear(run, hidden, 3 * hidden)], masked, activation)]


def _opt(model: Transformer, run: DecoderPass) -> list[Step]:
    hidden, elements, scores = model.hidden, run.tokens * model.hidden, _scores(model, run)
    masked = [
        pointwise(f"aten::{name}", scores, back=back, size=run.size) for name, back in (("add", 0), ("maximum", 3))
    ]
    projections = [*[linear(run, hidden, hidden)] * 3, pointwise("aten::mul", elements, size=run.size)]
    activation = [pointwise("aten::relu", run.tokens * model.feedforward, back=3, size=run.size)]
    first = [*[_embedding(run, hidden)] * 2, add(run, elements)]
    return [*first, *_decoder(model, run, projections, masked, activation)]


def _root_mean_square(model: Transformer, run: DecoderPass) -> list[Step]:
    """A normalisation without a kernel of its local: a power, a mean, and two products."""
    elements = run.tokens * model.hidden
    back = (("pow", 2, 7), ("mean", 1, 2), ("mul", 2, 3), ("mul", 2, 3))
    return [pointwise(f"aten::{name}", elements, max(arrays, 2), grad, run.size) for name, arrays, grad in back]


#: Arrays that adding a position bias goes through: its heads lie side by side in memory, so that an element of a score
#: fetches a sector of 32 bytes for 4 (scores read and written, eight of the bias).
_BIASED = 10.0


def _switch_attention(model: Transformer, run: DecoderPass, arrays: float) -> list[Step]:
    hidden, scores = model.hidden, _scores(model, run)
    return [
        *_root_mean_square(model, run),
        *[linear(run, hidden, hidden, bias=False)] * 3,
        *_attend(model, run, [pointwise("aten::add_", scores, arrays=arrays, back=0, size=run.size)]),
        linear(run, hidden, hidden, bias=False),
        *_dropout(run, run.tokens * hidden),
        add(run, run.tokens * hidden),
    ]


def _switch_feedforward(model: Transformer, run: DecoderPass, experts: int) -> list[Step]:
    """A gated product, as in T5 1.1 and in Switch Transformer (arXiv 2101.03961, table 9)."""
    hidden, tokens = model.hidden, run.tokens
    routed = _routed(model, run, experts) if experts > 1 else _gated(model, run, tokens)
    closing = [*_dropout(run, tokens * hidden), add(run, tokens * hidden)]
    return [*_root_mean_square(model, run), *routed, *closing]


def _gated(model: Transformer, run: DecoderPass, tokens: int) -> list[Step]:
    hidden, wide = model.hidden, model.feedforward
    return [
        *[linear(run, hidden, wide, bias=False, count=tokens)] * 2,
        pointwise("aten::gelu", tokens * wide, back=3, size=run.size),
        pointwise("aten::mul", tokens * wide, arrays=3, back=6, size=run.size),
        linear(run, wide, hidden, bias=False, count=tokens),
    ]


def _routed(model: Transformer, run: DecoderPass, experts: int) -> list[Step]:
    """Each token goes to one expert, so that experts share the tokens; the router picks and puts them back.

    The host waits for the tokens of each expert twice, to gather and to put back, so that small operators start late.
    """
    hidden, tokens = model.hidden, run.tokens
    each = max(tokens // experts, 1)
    moved = pointwise("aten::index", each * hidden, size=run.size)
    picked = waited("aten::nonzero", tokens, size=run.size)
    router = [
        linear(run, hidden, experts, bias=False),
        rows("aten::softmax", "softmax", tokens, experts, run.size),
        *[
            pointwise(f"aten::{name}", tokens * experts, size=run.size)
            for name in ("argmax", "one_hot", "cumsum", "mul")
        ],
        pointwise("aten::clone", tokens * hidden, size=run.size),
    ]
    chosen = [picked, moved, *_gated(model, run, each), picked, moved]
    scaled = pointwise("aten::mul", tokens * hidden, arrays=2, back=3, size=run.size)
    return [*router, *chosen * experts, scaled]


def _switch(model: Transformer, run: DecoderPass) -> list[Step]:
    """Encoder, then decoder, whose layers attend to the encoder's result too, with a bias of zeros."""
    dense, sparse = (_switch_feedforward(model, run, experts) for experts in (1, model.experts))
    itself, crossed = (_switch_attention(model, run, arrays) for arrays in (_BIASED, 3.0))
    encoder = [step for i in range(model.layers) for step in (*itself, *(sparse if i % 2 else dense))]
    decoder = [step for i in range(model.layers) for step in (*itself, *crossed, *(sparse if i % 2 else dense))]
    embedded = [_embedding(run, model.hidden)] * 2
    return [*embedded, *encoder, *decoder, linear(run, model.hidden, model.vocabulary, bias=False)]


def _megatron(model: Transformer, run: DecoderPass) -> list[Step]:
    """All on one rank."""
    dense = layer_block(model, run, dense=True).forward * model.dense_layers
    layers = layer_block(model, run).forward * (model.layers - model.dense_layers)
    return [*embedding_block(model, run).forward, *dense, *layers, *head_block(model, run, shared=True).forward]


_FORWARD: Mapping[str, Callable[[Transformer, DecoderPass], list[Step]]] = MappingProxyType(
    {"bert": _bert, "gpt2": _gpt2, "opt": _opt, "switch": _switch, "megatron": _megatron, "llama": _megatron}
)
