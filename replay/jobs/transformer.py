"""The operators of a transformer's forward pass, as PyTorch runs them one by one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from replay.jobs.architecture import Transformer
from replay.jobs.megatron import Shard, embedding_block, head_block, layer_block
from replay.jobs.step import Step, product, rows, stream
from replay.sizes import checked_size

__all__ = ["Pass", "forward"]


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

    Raises
    ------
    InvalidInputError
        A size is no whole number, below one or above 2^31.
    """

    batch: int
    length: int
    training: bool = False
    size: int = 4

    def __post_init__(self) -> None:
        for name in ("batch", "length", "size"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.length


def forward(model: Transformer, run: Pass) -> list[Step]:
    """List the operators of a forward pass, in order, every layer written out (`tally` only counts them).

    Examples
    --------
    >>> from replay.jobs.architecture import find_transformer
    >>> steps = forward(find_transformer("bert_large"), Pass(8, 512))
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


def _copies(model: Transformer, run: Pass, count: int) -> list[Step]:
    """Copies of a projection into the order of heads, or back."""
    return [stream("aten::copy_", run.tokens * model.hidden, size=run.size)] * count


def _attend(model: Transformer, run: Pass, masked: list[Step], keys: int | None = None) -> list[Step]:
    """Scores, what is done to them, softmax, and the weighted sum of values; operands are copied into heads."""
    heads, length, width = run.batch * model.heads, run.length, model.width
    keys = keys or length
    return [
        *_copies(model, run, 2),
        product("aten::bmm", heads, length, keys, width, run.size),
        *masked,
        rows("aten::softmax", "softmax", heads * length, keys, run.size),
        *_dropout(run, heads * length * keys),
        *_copies(model, run, 1),
        product("aten::bmm", heads, length, width, keys, run.size),
        *_copies(model, run, 1),
    ]


def _scores(model: Transformer, run: Pass) -> int:
    return run.batch * model.heads * run.length * run.length


def _bert(model: Transformer, run: Pass) -> list[Step]:
    hidden, tokens = model.hidden, run.tokens
    scores = _scores(model, run)
    masked = [stream("aten::div", scores, size=run.size), stream("aten::add", scores, back=0, size=run.size)]
    closing = [*_dropout(run, tokens * hidden), _add(run, tokens * hidden), _norm(model, run)]
    layer = [
        *[_linear(run, hidden, hidden)] * 3,
        *_attend(model, run, masked),
        _linear(run, hidden, hidden),
        *closing,
        _linear(run, hidden, model.feedforward),
        stream("aten::gelu", tokens * model.feedforward, back=3, size=run.size),
        _linear(run, model.feedforward, hidden),
        *closing,
    ]
    first = [*[_embedding(run, hidden)] * 3, *[_add(run, tokens * hidden)] * 2, _norm(model, run)]
    return [*first, *_dropout(run, tokens * hidden), *layer * model.layers, *_bert_head(model, run)]


def _bert_head(model: Transformer, run: Pass) -> list[Step]:
    hidden = model.hidden
    pooled = [_linear(run, hidden, hidden, count=run.batch), _linear(run, hidden, 2, count=run.batch)]
    if not run.training:
        return pooled
    return [
        *pooled,
        _linear(run, hidden, hidden),
        stream("aten::gelu", run.tokens * hidden, back=3, size=run.size),
        _norm(model, run),
        _linear(run, hidden, model.vocabulary),
    ]


def _gelu_of_eight(run: Pass, elements: int) -> list[Step]:
    """GELU by its formula with a hyperbolic tangent: the gradient of a power takes three operators."""
    names = (("mul", 2, 2), ("pow", 2, 7), ("mul", 2, 2), ("add", 3, 0), ("mul", 2, 2), ("tanh", 2, 3), ("add", 2, 0))
    found = [stream(f"aten::{name}", elements, arrays, back, run.size) for name, arrays, back in names]
    return [*found, stream("aten::mul", elements, 3, 6, run.size)]


def _gpt2(model: Transformer, run: Pass) -> list[Step]:
    hidden, tokens, scores = model.hidden, run.tokens, _scores(model, run)
    masked = [stream("aten::div", scores, size=run.size), stream("aten::where", scores, size=run.size)]
    layer = [
        _norm(model, run),
        _linear(run, hidden, 3 * hidden),
        *_attend(model, run, masked),
        _linear(run, hidden, hidden),
        *_dropout(run, tokens * hidden),
        _add(run, tokens * hidden),
        _norm(model, run),
        _linear(run, hidden, model.feedforward),
        *_gelu_of_eight(run, tokens * model.feedforward),
        _linear(run, model.feedforward, hidden),
        *_dropout(run, tokens * hidden),
        _add(run, tokens * hidden),
    ]
    first = [*[_embedding(run, hidden)] * 2, _add(run, tokens * hidden), *_dropout(run, tokens * hidden)]
    return [*first, *layer * model.layers, _norm(model, run), _linear(run, hidden, model.vocabulary, bias=False)]


def _opt(model: Transformer, run: Pass) -> list[Step]:
    hidden, tokens, scores = model.hidden, run.tokens, _scores(model, run)
    masked = [
        stream("aten::add", scores, back=0, size=run.size),
        stream("aten::maximum", scores, back=3, size=run.size),
    ]
    layer = [
        _norm(model, run),
        *[_linear(run, hidden, hidden)] * 3,
        stream("aten::mul", tokens * hidden, size=run.size),
        *_attend(model, run, masked),
        _linear(run, hidden, hidden),
        *_dropout(run, tokens * hidden),
        _add(run, tokens * hidden),
        _norm(model, run),
        _linear(run, hidden, model.feedforward),
        stream("aten::relu", tokens * model.feedforward, back=3, size=run.size),
        _linear(run, model.feedforward, hidden),
        *_dropout(run, tokens * hidden),
        _add(run, tokens * hidden),
    ]
    first = [*[_embedding(run, hidden)] * 2, _add(run, tokens * hidden)]
    return [*first, *layer * model.layers, _norm(model, run), _linear(run, hidden, model.vocabulary, bias=False)]


def _root_mean_square(model: Transformer, run: Pass) -> list[Step]:
    """A normalisation without a kernel of its own: a power, a mean, and two products."""
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
    """Each token goes to one expert, so that experts share the tokens; the router picks and puts them back."""
    hidden, tokens = model.hidden, run.tokens
    each = max(tokens // experts, 1)
    expert = [
        _linear(run, hidden, model.feedforward, bias=False, count=each),
        stream("aten::relu", each * model.feedforward, back=3, size=run.size),
        _linear(run, model.feedforward, hidden, bias=False, count=each),
    ]
    moved = stream("aten::index", each * hidden, size=run.size)
    routed = [step for _ in range(experts) for step in (moved, *expert, moved)] if experts > 1 else expert
    router = [_linear(run, hidden, experts, bias=False)] if experts > 1 else []
    closing = [*_dropout(run, tokens * hidden), _add(run, tokens * hidden)]
    return [*_root_mean_square(model, run), *router, *routed, *closing]


def _switch(model: Transformer, run: Pass) -> list[Step]:
    """Encoder, then decoder, whose layers attend to the encoder's result too, with a bias of zeros."""
    dense, sparse = (_switch_feedforward(model, run, experts) for experts in (1, model.experts))
    own, other = (_switch_attention(model, run, arrays) for arrays in (_BIASED, 3.0))
    encoder = [step for i in range(model.layers) for step in (*own, *(sparse if i % 2 else dense))]
    decoder = [step for i in range(model.layers) for step in (*own, *other, *(sparse if i % 2 else dense))]
    embedded = [_embedding(run, model.hidden)] * 2
    return [*embedded, *encoder, *decoder, _linear(run, model.hidden, model.vocabulary, bias=False)]


def _megatron(model: Transformer, run: Pass) -> list[Step]:
    """All on one rank."""
    shard = Shard(run.batch, run.length, 1, run.size)
    layers = layer_block(model, shard).forward * model.layers
    return [*embedding_block(model, shard).forward, *layers, *head_block(model, shard, shared=True).forward]


_FORWARD: Mapping[str, Callable[[Transformer, Pass], list[Step]]] = MappingProxyType(
    {"bert": _bert, "gpt2": _gpt2, "opt": _opt, "switch": _switch, "megatron": _megatron}
)
