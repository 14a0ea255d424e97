"""The operators of Megatron-LM's transformer on one tensor-parallel rank, forward and backward.

Sources: Megatron-LM (arXiv 1909.08053), section 3: a layer's two blocks each have a column-parallel product, then a
row-parallel one whose results are added up by an all-reduce; backward, the gradient of the block's input is. The
vocabulary is split too (arXiv 2104.04473, section 3). Mask and softmax are one kernel, bias and GELU one, bias, dropout
and residual one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replay.jobs.architecture import Transformer
from replay.jobs.step import Step, backward, product, rows, stream
from replay.operators import Operator, rowwise, streaming

__all__ = ["Block", "Shard", "all_reduce", "embedding_block", "head_block", "layer_block", "padded_vocabulary"]

#: The vocabulary is filled up to a multiple of this for each rank.
_VOCABULARY_UNIT = 128
_MASK_BYTES, _FP32_BYTES = 1, 4


@dataclass(frozen=True)
class Block:
    """What a part of the model runs for one micro-batch.

    Parameters
    ----------
    name : str
        ``"embedding"``, ``"layer"`` or ``"head"``.
    forward, backward : tuple of Step
        Collectives among them.
    weights : int
        Elements of its parameters on this rank.
    tensors : int
        Parameters, which the optimizer goes through.
    """

    name: str
    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    weights: int = 0
    tensors: int = 0


@dataclass(frozen=True)
class Shard:
    """Sizes of one micro-batch on one rank: tokens, sequences, bytes of an element, and ranks that share a layer."""

    sequences: int
    length: int
    ranks: int
    size: int = 2

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.sequences * self.length


def padded_vocabulary(model: Transformer, ranks: int) -> int:
    """Return the vocabulary, filled up to a multiple of 128 for each of `ranks`.

    Examples
    --------
    >>> from replay.jobs.architecture import Transformer
    >>> padded_vocabulary(Transformer("m", "megatron", 1, 64, 1, 256, 50257), 8)
    51200
    """
    unit = _VOCABULARY_UNIT * ranks
    return -(-model.vocabulary // unit) * unit


def all_reduce(elements: int, size: int = 2) -> Step:
    """Return an all-reduce of that many elements."""
    moved = float(elements * size)
    return Step("nccl:all_reduce", streaming("copy", moved, moved, elements, size), collective="all_reduce")


def layer_block(model: Transformer, shard: Shard) -> Block:
    """Return one layer.

    Examples
    --------
    >>> from replay.jobs.architecture import Transformer
    >>> model = Transformer("m", "megatron", 1, 1024, 16, 4096, 51200)
    >>> [sum(bool(s.collective) for s in layer_block(model, Shard(1, 1024, n)).forward) for n in (1, 2)]
    [0, 2]
    """
    hidden, wide = model.hidden, model.feedforward
    attention = _parallel(model, shard, _attention(model, shard))
    feedforward = _parallel(model, shard, _feedforward(model, shard))
    weights = (4 * hidden * hidden + 3 * hidden + 2 * hidden * wide + wide) // shard.ranks + 6 * hidden
    return Block(
        "layer",
        (*attention.forward, *feedforward.forward),
        (*feedforward.backward, *attention.backward),
        weights,
        tensors=12,
    )


def _parallel(model: Transformer, shard: Shard, inner: Sequence[Step]) -> Block:
    """A normalisation, the block's operators, the sum over ranks, then bias, dropout and residual."""
    elements = shard.tokens * model.hidden
    first = [rows("aten::layer_norm", "normalization", shard.tokens, model.hidden, shard.size)]
    last = [_bias_dropout_add(shard, elements, model.hidden)]
    meet = [all_reduce(elements, shard.size)] if shard.ranks > 1 else []
    joined = stream("aten::add", elements, arrays=3, back=0, size=shard.size)
    return Block(
        "layer",
        (*first, *inner, *meet, *last),
        (*backward(last), *backward(inner), *meet, *backward(first), joined),
    )


def _attention(model: Transformer, shard: Shard) -> list[Step]:
    heads = max(shard.sequences * model.heads // shard.ranks, 1)
    length, width, size = shard.length, model.width, shard.size
    own = max(model.hidden // shard.ranks, 1)
    return [
        _linear(shard, model.hidden, 3 * own),
        product("aten::baddbmm", heads, length, length, width, size),
        *_masked_softmax(heads, length, size),
        _dropout(heads * length * length, size),
        product("aten::bmm", heads, length, width, length, size),
        stream("aten::copy_", shard.tokens * own, size=size),
        _linear(shard, own, model.hidden, bias=False),
    ]


def _feedforward(model: Transformer, shard: Shard) -> list[Step]:
    own = max(model.feedforward // shard.ranks, 1)
    gelu = stream("bias_gelu", shard.tokens * own, back=3, size=shard.size)
    gelu = replace(gelu, gradient=(*gelu.gradient, _sum_of_rows(shard, own)))
    up, down = _linear(shard, model.hidden, own, bias=False), _linear(shard, own, model.hidden, bias=False)
    return [up, gelu, down]


def _linear(shard: Shard, inputs: int, outputs: int, *, bias: bool = True) -> Step:
    weights = inputs * outputs + outputs * bias
    return product("aten::addmm" if bias else "aten::mm", 1, shard.tokens, outputs, inputs, shard.size, weights=weights)


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


def _dropout(elements: int, size: int) -> Step:
    """It writes a mask of bytes, which the gradient is multiplied with."""
    share = _MASK_BYTES / size
    return stream("aten::native_dropout", elements, arrays=2 + share, back=2 + share, size=size)


def _bias_dropout_add(shard: Shard, elements: int, hidden: int) -> Step:
    share = _MASK_BYTES / shard.size
    step = stream("bias_dropout_add", elements, arrays=3 + share, back=2 + share, size=shard.size)
    return replace(step, gradient=(*step.gradient, _sum_of_rows(shard, hidden)))


def _sum_of_rows(shard: Shard, columns: int) -> Operator:
    moved = float(shard.tokens * columns * shard.size)
    return streaming("reduction", moved, float(columns * shard.size), shard.tokens * columns, shard.size)


def embedding_block(model: Transformer, shard: Shard) -> Block:
    """Return the embedding of tokens and positions, with its dropout."""
    elements, size = shard.tokens * model.hidden, shard.size
    meet = [all_reduce(elements, size)] if shard.ranks > 1 else []
    looked_up = stream("aten::embedding", elements, size=size)
    rest = [stream("aten::add", elements, arrays=3, back=0, size=size), _dropout(elements, size)]
    weights = padded_vocabulary(model, shard.ranks) // shard.ranks * model.hidden
    grown = stream("aten::add_", weights, arrays=3, back=0, size=size)
    back = (*backward(rest), *backward([looked_up]), *backward([looked_up]), grown)
    return Block(
        "embedding", (looked_up, looked_up, *meet, *rest), back, weights + shard.length * model.hidden, tensors=2
    )


def head_block(model: Transformer, shard: Shard, *, shared: bool) -> Block:
    """Return the last normalisation, the logits and the loss.

    Parameters
    ----------
    shared : bool
        Whether the embedding's weights are on the same rank, so that they are not stored twice.
    """
    own = padded_vocabulary(model, shard.ranks) // shard.ranks
    norm = [rows("aten::layer_norm", "normalization", shard.tokens, model.hidden, shard.size)]
    logits = [product("aten::mm", 1, shard.tokens, own, model.hidden, shard.size, weights=own * model.hidden)]
    few = [all_reduce(shard.tokens, _FP32_BYTES)] if shard.ranks > 1 else []
    meet = [all_reduce(shard.tokens * model.hidden, shard.size)] if shard.ranks > 1 else []
    loss = _cross_entropy(shard.tokens * own)
    weights = 2 * model.hidden + (0 if shared else own * model.hidden)
    return Block(
        "head",
        (*norm, *logits, *loss[:2], *few, *loss[2:4], *few, *loss[4:], *few),
        (*backward(loss), *backward(logits), *meet, *backward(norm)),
        weights,
        tensors=2 if shared else 3,
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
