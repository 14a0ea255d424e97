"""Blocks of decoders as large models train them: flash attention, heads of keys in groups, gated layers, experts.

`DecoderPass` says how a model is run, `DecoderBlock` holds the operators of a part of it on one rank. `parallel_block`
puts normalisation, collectives and residual around a block. `flash_attention` runs attention in one kernel, and
`scored_attention` keeps the scores in memory. `llama_layer`, `llama_embedding` and `llama_head` are Llama's (arXiv
2302.13971): root mean square normalisation, rotary positions, a gated feed-forward layer, no biases, no dropout, an
output layer of its own.

Sources: grouped heads arXiv 2305.13245; FlashAttention arXiv 2205.14135, whose backward pass computes five products for
two; ring attention over context-parallel ranks arXiv 2310.01889; latent attention and shared experts of DeepSeek arXiv
2405.04434.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replay.graph.operators import Operator, rowwise, streaming
from replay.workloads.architecture import Step, Transformer, backward, checked_size, column_sums, pointwise, product

#: The vocabulary is filled up to a multiple of this for each rank.
_VOCABULARY_UNIT = 128
_FP32_BYTES, _FP8_BYTES = 4, 1
#: Products of a backward pass of attention for those of the forward pass: the scores again, and four gradients for two
#: products (arXiv 2205.14135, section 3; arXiv 2307.08691).
BACKWARD_ATTENTION = 2.5


@dataclass(frozen=True)
class DecoderBlock:
    """Operators of a part of the model for one micro-batch.

    Parameters
    ----------
    forward, backward : tuple of Step
        Collectives among them.
    weights : int
        Elements of its parameters on this rank.
    tensors : int
        Parameters, which the optimizer goes through.
    expert_weights : int
        Elements of its experts' parameters among `weights`.
    """

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    weights: int = 0
    tensors: int = 0
    expert_weights: int = 0


@dataclass(frozen=True)
class DecoderPass:
    """How a model is run.

    Parameters
    ----------
    batch, length : int
        Sequences, and tokens of each on this rank.
    training : bool
        Whether dropout is on and a training head is used.
    size : int
        Bytes of an element.
    ranks : int
        Ranks that share a layer.
    sequence_parallel : bool
        Whether the ranks share the tokens between their blocks: each all-reduce is a reduce-scatter and an all-gather.
    attention : str
        ``"plain"``, or ``"flash"``: one operator each way.
    context, expert : int
        Ranks that share the tokens of a sequence; ranks that share the experts.
    product_size : int
        Bytes of an element of the products of weights: 1 in FP8, 0 for `size`.
    cached : int
        Tokens of each sequence whose keys and values are in a cache, before those of this pass.

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
    attention: str = "plain"
    context: int = 1
    expert: int = 1
    product_size: int = 0
    cached: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "length", "size", "ranks", "context", "expert"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))

    @property
    def tokens(self) -> int:
        """Tokens of all sequences on this rank."""
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


def exchange(kind: str, elements: int, size: int = 2, group: str = "tensor") -> Step:
    """Return a collective.

    Parameters
    ----------
    kind : str
        Kind, such as ``"all_reduce"``.
    elements : int
        Elements of the whole buffer: what an all-gather returns, and a reduce-scatter takes.
    size : int
        Bytes of an element.
    group : str
        Group of ranks, as `replay.workloads.Layout.topology` names it.
    """
    moved = float(elements * size)
    return Step(f"nccl:{kind}", streaming("copy", moved, moved, elements, size), collective=kind, group=group)


def linear(run: DecoderPass, inputs: int, outputs: int, *, bias: bool = True, count: int | None = None) -> Step:
    """Return a product of all tokens, or `count` of them, with a matrix of weights."""
    tokens = run.tokens if count is None else count
    name = "aten::addmm" if bias else "aten::mm"
    return product(name, 1, tokens, outputs, inputs, run.size, weights=inputs * outputs + outputs * bias)


def add(run: DecoderPass, elements: int) -> Step:
    """Return the sum of two arrays, whose gradient passes unchanged."""
    return pointwise("aten::add", elements, arrays=3, back=0, size=run.size)


def parallel_block(
    model: Transformer, run: DecoderPass, first: Sequence[Step], inner: Sequence[Step], last: Sequence[Step]
) -> DecoderBlock:
    """Return a normalisation, the operators of a block, the sum over ranks, then what closes it with the residual.

    With sequence parallelism, `first` and `last` are those of a rank's share of the tokens. The gradient of the first
    product's input is scattered before the gradient of its weights is computed (arXiv 2205.05198, section 4.2).

    Parameters
    ----------
    model : Transformer
        Sizes of the model.
    run : DecoderPass
        How the model is run.
    first, inner, last : sequence of Step
        Operators before the ranks share the work, of the ranks' shares, and after the sum.
    """
    elements, inner = run.tokens * model.hidden, in_fp8(inner, run)
    if not run.sequence_parallel or run.ranks == 1:
        meet = [exchange("all_reduce", elements, run.size)] if run.ranks > 1 else []
        return DecoderBlock(
            (*first, *inner, *meet, *last),
            (*backward(last), *backward(inner), *meet, *backward(first), add(run, elements)),
        )
    gather, scatter = (exchange(kind, elements, run.size) for kind in ("all_gather", "reduce_scatter"))
    begin = 1 + next(i for i, step in enumerate(inner) if step.gradient)
    opening = backward(inner[:begin])
    of_input = [step for step in opening if not step.of_weights]
    of_weights = [step for step in opening if step.of_weights]
    return DecoderBlock(
        (*first, gather, *inner, scatter, *last),
        (
            *(*backward(last), gather, *backward(inner[begin:]), *of_input, scatter, *of_weights),
            *(*backward(first), add(run, between_blocks(run).tokens * model.hidden)),
        ),
    )


def between_blocks(run: DecoderPass) -> DecoderPass:
    """Return how normalisations and residuals are run: on a share of the tokens, with sequence parallelism."""
    return replace(run, length=max(run.length // run.ranks, 1)) if run.sequence_parallel and run.ranks > 1 else run


def flash_attention(model: Transformer, run: DecoderPass, width: int | None = None) -> list[Step]:
    """Return causal attention in one operator, with what context-parallel ranks exchange for it.

    Each rank holds an early and a late part of every sequence, so that all compute as much. Keys and values go around a
    ring while attention runs; backward, their gradients do too.

    Parameters
    ----------
    model : Transformer
        Sizes of the model.
    run : DecoderPass
        How the model is run.
    width : int, optional
        Elements of a head, half of those of a query and a value together; by default those of the model.
    """
    heads, kv_heads, width = max(model.heads // run.ranks, 1), kv_heads_of(model, run), width or model.width
    if run.cached:
        return [_cached_attention(run, heads, kv_heads, width)]
    # As many pairs as queries that are the last of so many keys have.
    keys = (run.context * run.length + run.length) // 2
    dims = (run.batch, run.length, keys, heads, kv_heads, width, 0)
    pairs = run.length * keys - run.length * (run.length - 1) / 2
    flops = 4.0 * run.batch * heads * width * pairs
    queries, cached = (run.tokens * each * width * run.size for each in (heads, kv_heads))
    forward = Operator("context_attention", flops, queries + 2 * cached * run.context, queries, dims, run.size)
    back = replace(forward, flops=BACKWARD_ATTENTION * flops, bytes_read=3 * queries + 2 * cached * run.context,
                   bytes_written=queries + 2 * cached)  # fmt: skip
    attend = Step("flash_attention", forward, (back,))
    if run.context == 1:
        return [attend]
    # Backward, keys, values and both gradients go around.
    sent = 2 * run.tokens * kv_heads * width * (run.context - 1)
    ring = exchange("send_recv", sent, run.size, "context")
    ring = replace(ring, gradient=(exchange("send_recv", 2 * sent, run.size, "context").operator,), overlapped=True)
    return [ring, attend]


def _cached_attention(run: DecoderPass, heads: int, kv_heads: int, width: int) -> Step:
    """Return attention of new tokens over a cache."""
    keys = run.cached + run.length
    flops = 4.0 * run.tokens * heads * keys * width
    queries, held = (run.batch * tokens * count * width * run.size
                     for tokens, count in ((run.length, heads), (keys, kv_heads)))  # fmt: skip
    dims = (run.batch, run.length, keys, heads, kv_heads, width, 0)
    attend = Operator("generation_attention", flops, queries + 2 * held, queries, dims, run.size)
    return Step("decode_attention", attend)


def kv_heads_of(model: Transformer, run: DecoderPass) -> int:
    """Return the heads of keys on a rank: a head that several ranks need is on each of them."""
    return max(model.key_value_heads // run.ranks, 1)


def scored_attention(model: Transformer, run: DecoderPass, between: Sequence[Step]) -> list[Step]:
    """Return attention whose scores are in memory: a product, the operators `between`, a product, and a copy.

    Context-parallel ranks gather keys and values first; backward, their gradients are scattered.
    """
    heads, length, size = max(run.batch * model.heads // run.ranks, 1), run.length, run.size
    keys, width = length * run.context, model.width
    gathered = []
    if run.context > 1:
        elements = 2 * run.tokens * kv_heads_of(model, run) * width * run.context
        step = exchange("all_gather", elements, size, "context")
        gathered = [replace(step, gradient=(step.operator,))]
    local = max(model.heads // run.ranks, 1) * width
    core = [
        product("aten::baddbmm", heads, length, keys, width, size),
        *between,
        product("aten::bmm", heads, length, width, keys, size),
    ]
    return [
        *gathered,
        *(replace(step, of_scores=True) for step in core),
        pointwise("aten::copy_", run.tokens * local, size=size),
    ]


def masked_softmax(heads: int, length: int, keys: int, size: int) -> list[Step]:
    """Return scale, mask and softmax: one kernel, or, of sizes that it is not made for, one by one in FP32.

    Source: Megatron-LM, megatron/model/fused_softmax.py: multiples of four heads (of all sequences) and of four tokens,
    17 to 2048 of them.
    """
    elements = heads * length * keys
    if heads % 4 == 0 and length % 4 == 0 and 16 < keys <= 2048:
        return [softmax(heads * length, keys, size)]
    converted = 1 + _FP32_BYTES / size
    to_or_from = pointwise("aten::to", elements, arrays=converted, back=converted, size=size)
    scaled, masked = (pointwise(f"aten::{name}", elements, size=_FP32_BYTES) for name in ("mul", "masked_fill_"))
    return [to_or_from, scaled, masked, softmax(heads * length, keys, _FP32_BYTES), to_or_from]


def softmax(count: int, columns: int, size: int) -> Step:
    """Return a softmax, which backward reads its result and the gradient."""
    back = rowwise("softmax", count, columns, size, backward=True)
    return Step("aten::softmax", rowwise("softmax", count, columns, size), (back,))


def cross_entropy(elements: int) -> list[Step]:
    """Return the loss of split logits: to FP32; largest, difference, exponential, sum, share; backward a product."""
    converted = pointwise("aten::to", elements, arrays=3, back=3, size=2)
    names = (("max", 1.0, 0), ("sub_", 2.0, 0), ("exp", 2.0, 0), ("sum", 1.0, 0), ("div_", 2.0, 2.0))
    return [converted, *(_pass(f"aten::{name}", elements, arrays, back) for name, arrays, back in names)]


def _pass(name: str, elements: int, arrays: float, back: float) -> Step:
    """FP32; one array is only read."""
    if arrays > 1:
        return pointwise(name, elements, arrays, back, _FP32_BYTES)
    return Step(name, streaming("reduction", float(elements * _FP32_BYTES), 0.0, elements, _FP32_BYTES))


def in_fp8(steps: Sequence[Step], run: DecoderPass) -> list[Step]:
    """Return the steps with products of weights in 8 bits, if the pass asks for them.

    An input is quantized before its product, and a gradient before the two products that take it (arXiv 2209.05433).
    Kernels of normalisations and activations write their results in 8 bits themselves, and those that quantize a
    gradient sum it up for the bias, as in NVIDIA's Transformer Engine. Weights are quantized once a step, which is not
    counted.
    """
    if not run.product_size:
        return list(steps)
    converted: list[Step] = []
    for before, step, after in zip([None, *steps], steps, [*steps[1:], None], strict=False):
        if _is_of_weights(step):
            _, m, n, k = step.operator.dims
            if before and not before.chained:  # before the first one is a normalisation
                converted.append(Step("quantize", _quantization(m, k)))
            gradient = [] if after and after.chained else [_quantization(m, n)]
            converted.append(_in_8_bits(_without_sums(step), *gradient))
        elif step.chained and before and _is_of_weights(before):
            converted.append(_without_sums(step))
        else:
            converted.append(_in_8_bits(step) if step.operator.kind == "experts" else step)
    return converted


def _is_of_weights(step: Step) -> bool:
    """Return whether a step is a product with weights."""
    return step.operator.kind == "matmul" and step.parameters > 0


def _without_sums(step: Step) -> Step:
    """Return a step whose gradient is summed up for the bias by the kernel that quantizes it."""
    return replace(step, gradient=tuple(each for each in step.gradient if each.kind != "reduction"))


def _in_8_bits(step: Step, *first: Operator) -> Step:
    """Operands of products in 8 bits, results in 16; `first` goes before the gradients."""
    forward, *gradient = (
        replace(each, bytes_read=each.bytes_read * _FP8_BYTES / each.element_bytes, element_bytes=_FP8_BYTES)
        if each.kind in ("matmul", "experts")
        else each
        for each in (step.operator, *step.gradient)
    )
    return replace(step, operator=forward, gradient=(*first, *gradient))


def _quantization(rows: int, columns: int) -> Operator:
    elements = rows * columns
    return Operator("quantization", float(elements), 2.0 * elements, float(elements), (rows, columns), _FP8_BYTES)


def llama_layer(model: Transformer, run: DecoderPass, *, dense: bool = False) -> DecoderBlock:
    """Return a layer in the style of Llama, with experts if the model has them.

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
    >>> model = Transformer("m", "llama", 2, 1024, 16, 4096, 32000, kv_heads=4)
    >>> block = llama_layer(model, DecoderPass(1, 1024, size=2, attention="flash"))
    >>> block.weights == (2 * 16 + 2 * 4) * 64 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    True
    """
    between = between_blocks(run)
    norm = [root_mean_square(between, model.hidden)]
    closing = [add(between, between.tokens * model.hidden)]
    attention = parallel_block(model, run, norm, _llama_attention(model, run), closing)
    is_sparse = model.experts > 1 and not dense
    routed = expert_layer(model, run) if is_sparse else gated(model, run, model.feedforward)
    feedforward = parallel_block(model, run, norm, routed, closing)
    steps = (*attention.forward, *feedforward.forward)
    return DecoderBlock(
        steps,
        (*feedforward.backward, *attention.backward),
        sum(step.parameters for step in steps),
        tensors=sum(step.parameters > 0 for step in steps),
        expert_weights=sum(step.parameters for step in steps if step.operator.kind == "experts"),
    )


def root_mean_square(run: DecoderPass, columns: int) -> Step:
    """Return a root mean square normalisation in one kernel that is bound by memory."""
    step = pointwise("rms_norm", run.tokens * columns, back=3, size=run.size)
    return replace(step, gradient=(*step.gradient, column_sums(run.tokens, columns, run.size)), parameters=columns)


def _llama_attention(model: Transformer, run: DecoderPass) -> list[Step]:
    heads, kv_heads, width = max(model.heads // run.ranks, 1), kv_heads_of(model, run), model.width
    if model.key_rank:
        return _latent_attention(model, run, heads)
    if run.attention == "flash":
        core = flash_attention(model, run)
    else:
        batch = max(run.batch * heads, 1)
        core = scored_attention(model, run, masked_softmax(batch, run.length, run.length * run.context, run.size))
    return [
        linear(run, model.hidden, (heads + 2 * kv_heads) * width, bias=False),
        pointwise("rotary", run.tokens * (heads + kv_heads) * width, size=run.size),
        *core,
        linear(run, heads * width, model.hidden, bias=False),
    ]


def _latent_attention(model: Transformer, run: DecoderPass, heads: int) -> list[Step]:
    """Queries, and keys with values, come from compressed ones; positions are in `rotary_width` further elements.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1. In training, keys and values of all heads are computed.
    """
    width, rotary, hidden = model.width, model.rotary_width, model.hidden
    queries = [linear(run, hidden, heads * (width + rotary), bias=False)]
    if model.query_rank:
        queries = [
            linear(run, hidden, model.query_rank, bias=False),
            root_mean_square(run, model.query_rank),
            linear(run, model.query_rank, heads * (width + rotary), bias=False),
        ]
    compressed = [linear(run, hidden, model.key_rank + rotary, bias=False), root_mean_square(run, model.key_rank)]
    if run.cached:  # the cache holds compressed keys, which all heads share; queries and results are projected instead
        into, out = ((model.key_rank, width), (width, model.key_rank))
        projected = [product("aten::bmm", heads, run.tokens, *each, run.size) for each in (into, out)]
        attend = _cached_attention(run, heads, 1, model.key_rank + rotary)
        turned = pointwise("rotary", run.tokens * (heads + 1) * rotary, size=run.size)
        closing = linear(run, heads * width, hidden, bias=False)
        return [*queries, *compressed, projected[0], turned, attend, projected[1], closing]
    return [
        *queries,
        *compressed,
        linear(run, model.key_rank, 2 * heads * width, bias=False),
        pointwise("rotary", run.tokens * (heads + 1) * rotary, size=run.size),
        pointwise("aten::cat", run.tokens * heads * (width + rotary), arrays=2, size=run.size),
        # Scores take the width and the positions, values the width.
        *flash_attention(replace(model, kv_heads=0), run, width + rotary // 2),
        linear(run, heads * width, hidden, bias=False),
    ]


def gated(model: Transformer, run: DecoderPass, wide: int) -> list[Step]:
    """Return a gated feed-forward layer of size `wide`: one product for both halves, SiLU of one times the other."""
    local = max(wide // run.ranks, 1)
    return [
        linear(run, model.hidden, 2 * local, bias=False),
        pointwise("silu_and_mul", run.tokens * local, arrays=3, back=5, size=run.size),
        linear(run, local, model.hidden, bias=False),
    ]


def expert_layer(model: Transformer, run: DecoderPass, *, is_gated: bool = True) -> list[Step]:
    """Return a router, tokens sent to the ranks of their experts and back, and the experts' products.

    Tokens choose experts evenly. Tensor-parallel ranks share each expert, and exchange the same tokens.

    Parameters
    ----------
    model : Transformer
        Sizes of the model.
    run : DecoderPass
        How the model is run.
    is_gated : bool
        Whether experts are gated layers, of three matrices instead of two.
    """
    hidden, chosen, size = model.hidden, model.experts_per_token, run.size
    router = [
        linear(run, hidden, model.experts, bias=False),
        Step("aten::softmax", rowwise("softmax", run.tokens, model.experts, _FP32_BYTES),
             (rowwise("softmax", run.tokens, model.experts, _FP32_BYTES, backward=True),)),
        pointwise("aten::topk", run.tokens * model.experts, size=_FP32_BYTES),
    ]  # fmt: skip
    shared = gated(model, run, model.shared_experts * model.expert_size) if model.shared_experts else []
    return [*router, *shared, *_sent(run, chosen, hidden, size, _expert_products(model, run, 2 + is_gated))]


def _sent(run: DecoderPass, chosen: int, hidden: int, size: int, products: Step) -> list[Step]:
    """Return the products of experts, with the exchange of tokens if other ranks have some of the experts."""
    if run.expert == 1:
        return [products]
    copies = run.tokens * chosen * hidden
    send = exchange("all_to_all", copies, size, "expert")
    send = replace(send, gradient=(send.operator,))
    permuted = pointwise("permute", copies, arrays=1 + 1 / chosen, back=1 + 1 / chosen, size=size)
    return [permuted, send, products, send, replace(permuted, name="unpermute")]


def _expert_products(model: Transformer, run: DecoderPass, matrices: int) -> Step:
    """Return the grouped products of a rank's experts; each of two gradients computes as much."""
    hidden, wide, ranks = model.hidden, max(model.expert_size // run.ranks, 1), run.expert
    rows, weights = run.tokens * model.experts_per_token, matrices * hidden * wide * model.experts // ranks
    dims = (run.tokens * ranks, hidden, model.expert_size, model.experts_per_token, model.experts, run.ranks, ranks,
            0, matrices - 2)  # fmt: skip
    read, written = weights + rows * (hidden + wide), rows * (hidden + (matrices - 1) * wide)
    forward = Operator("experts", 2.0 * matrices * rows * hidden * wide, float(run.size * read),
                       float(run.size * written), dims, run.size)  # fmt: skip
    return Step("grouped_gemm", forward, (forward, forward), weights)


def llama_embedding(model: Transformer, run: DecoderPass) -> DecoderBlock:
    """Return the embedding of tokens."""
    elements, size = run.tokens * model.hidden, run.size
    meet = [exchange("all_reduce", elements, size)] if run.ranks > 1 else []
    weights = padded_vocabulary(model, run.ranks) // run.ranks * model.hidden
    looked_up = pointwise("aten::embedding", elements, size=size)
    grown = pointwise("aten::add_", weights, arrays=3, back=0, size=size)
    return DecoderBlock((looked_up, *meet), (*backward([looked_up]), grown), weights, tensors=1)


def llama_head(model: Transformer, run: DecoderPass) -> DecoderBlock:
    """Return the last normalisation, the logits with weights of their own, and the loss."""
    local = padded_vocabulary(model, run.ranks) // run.ranks
    norm = [root_mean_square(run, model.hidden)]
    logits = [product("aten::mm", 1, run.tokens, local, model.hidden, run.size, weights=local * model.hidden)]
    few = [exchange("all_reduce", run.tokens, _FP32_BYTES)] if run.ranks > 1 else []
    meet = [exchange("all_reduce", run.tokens * model.hidden, run.size)] if run.ranks > 1 else []
    loss = cross_entropy(run.tokens * local)
    return DecoderBlock(
        (*norm, *logits, *loss[:2], *few, *loss[2:4], *few, *loss[4:], *few),
        (*backward(loss), *backward(logits), *meet, *backward(norm)),
        (local + 1) * model.hidden,
        tensors=2,
    )
