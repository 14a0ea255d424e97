"""The groups of part h: runs that differ in one change, and the what-if that has to predict each gain.

Groups stand in the order in which they are recorded, the most telling first. Runs of a group are timed by turns, so
that a drift of the device is in all of them. A what-if may hold ``{host}`` or ``{part}``: how many times as long
the host takes to issue a step, or the changed part of a step takes by itself, after the change, as measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.gpu.pairs.loops import (
    Images,
    Setting,
    Step,
    attending,
    experts,
    loading,
    neighbours,
    prefetching,
    serving,
    training,
)
from benchmarks.gpu.pairs.networks import Generator, ResNet
from benchmarks.gpu.training.fixed import Bert, Recommender
from benchmarks.gpu.training.sequence import LanguageModel, Translation
from benchmarks.gpu.training.shapes import clicks, text

__all__ = ["Change", "Group", "Run", "Sizes", "groups"]


#: How most runs are: mixed precision in BF16, eager, the fused optimizer.
_MIXED = Setting()


@dataclass(frozen=True)
class Run:
    """A job that is timed and traced.

    Parameters
    ----------
    name : str
        Tells the run from all others; its trace is called so.
    make : callable
        From a setting and a device to a step.
    setting : Setting
        How the step runs.
    batch, sequence_length : int or None
        Sequences or samples of a step, and tokens of a sequence.
    need_bytes : int
        Device memory, about.
    needs : frozenset of str
        Features of the machine.
    seconds : float
        Time to make the step and to warm it, by a guess.
    """

    name: str
    make: Callable[[Setting, str], Step]
    setting: Setting = _MIXED
    batch: int | None = None
    sequence_length: int | None = None
    need_bytes: int = 0
    needs: frozenset[str] = frozenset()
    seconds: float = 0.4


@dataclass(frozen=True)
class Change:
    """A run before and after a change: names of runs, and the what-if; empty if no what-if says it."""

    before: str
    after: str
    what_if: str


@dataclass(frozen=True)
class Group:
    """Runs that are timed by turns.

    Parameters
    ----------
    name : str
        Kind of the change.
    runs : tuple of Run
        Runs, the one before the change first.
    changes : tuple of Change
        Pairs of them.
    part : callable, optional
        From a run and a device to a part of its step that is timed by itself.
    """

    name: str
    runs: tuple[Run, ...]
    changes: tuple[Change, ...]
    part: Callable[[Run, str], Step] | None = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of the networks and batches.

    Parameters
    ----------
    hidden, heads, vocabulary : int
        Sizes of the decoder.
    layers : int
        Layers of the decoder.
    batch, length : int
        Sequences of a step, and tokens of each.
    bert : tuple of int
        Hidden size, layers, heads, vocabulary, batch and length of BERT.
    images : tuple of int
        Width of ResNet, images of a batch, and rows of an image.
    blocks : tuple of int
        Bottlenecks of each stage of ResNet.
    translation : tuple of int
        Hidden size, layers, vocabulary, batch and length of the translator.
    dlrm : tuple of int
        Tables, rows, width, bag and batch of the recommender.
    experts : tuple of int
        Hidden, inner, experts and tokens of the layer of experts.
    products : tuple of int
        Side, rows and number of products beside copies.
    decode_batches, prompts : tuple of int
        Sequences that are decoded at once, and tokens of prompts.
    context : int
        Tokens before the one that is decoded.
    factors : tuple of int
        Factors of batch and length.
    spins_ns : tuple of int
        Times that the host spins in each operator.
    compiled : bool
        Whether a model is compiled, too, which takes half a minute.
    """

    hidden: int
    heads: int
    vocabulary: int
    layers: int
    batch: int
    length: int
    bert: tuple[int, int, int, int, int, int]
    images: tuple[int, int, int]
    blocks: tuple[int, ...]
    translation: tuple[int, int, int, int, int]
    dlrm: tuple[int, int, int, int, int]
    experts: tuple[int, int, int, int]
    products: tuple[int, int, int]
    decode_batches: tuple[int, ...]
    prompts: tuple[int, ...]
    context: int
    factors: tuple[int, ...] = (1, 2, 4)
    spins_ns: tuple[int, ...] = (5_000, 20_000)
    compiled: bool = True


_FULL = Sizes(
    hidden=1024, heads=16, vocabulary=50304, layers=6, batch=8, length=512,
    bert=(768, 12, 12, 30522, 8, 128), images=(64, 64, 224), blocks=(3, 4, 6, 3), translation=(512, 4, 16384, 64, 32),
    dlrm=(16, 20_000, 64, 20, 2048), experts=(1024, 4096, 8, 2048), products=(4096, 8192, 6),
    decode_batches=(1, 4, 16, 64), prompts=(512, 2048, 8192), context=512,
)  # fmt: skip
_CPU = Sizes(
    hidden=128, heads=4, vocabulary=1024, layers=2, batch=2, length=64,
    bert=(64, 2, 4, 512, 2, 32), images=(8, 4, 56), blocks=(1, 1), translation=(32, 2, 256, 4, 16),
    dlrm=(4, 1000, 16, 4, 64), experts=(128, 256, 4, 128), products=(256, 256, 2),
    decode_batches=(1, 4), prompts=(64, 128), context=64, factors=(1, 2),
)  # fmt: skip
_TINY = replace(
    _CPU, hidden=16, heads=2, vocabulary=64, length=16, bert=(16, 1, 2, 64, 2, 8), images=(4, 2, 28), blocks=(1,),
    translation=(8, 2, 32, 2, 4), products=(16, 8, 2), experts=(16, 32, 2, 8), prompts=(8, 16), context=8,
    compiled=False,
)  # fmt: skip
_SIZES = {"full": _FULL, "cpu": _CPU, "tiny": _TINY}


def groups(size: str) -> list[Group]:
    """Return the groups of a size, the most telling first; a run of several groups is the same in each."""
    sizes = _SIZES[size]
    listed = [
        _recorded(sizes), _spins(sizes), _types(sizes), _batches(sizes), _lengths(sizes), _launches(sizes),
        _optimizers(sizes), _attention(sizes), _layers(sizes), _decoding(sizes), _prompts(sizes),
        _serving_steps(sizes), _copies(sizes), _streams(sizes), _priorities(sizes), _loaders(sizes), _images(sizes),
        _translations(sizes), _recommenders(sizes),
    ]  # fmt: skip
    return [*listed, _compiled(sizes)] if sizes.compiled else listed


def _pairs(runs: Sequence[Run], what_ifs: Sequence[str]) -> tuple[Change, ...]:
    """Return the change from the first run to each other one."""
    return tuple(Change(runs[0].name, run.name, text) for run, text in zip(runs[1:], what_ifs, strict=True))


def _decoder(sizes: Sizes, name: str = "gpt", setting: Setting = _MIXED, **changed: int) -> Run:
    """Return a run that trains the decoder, with some sizes changed."""
    sizes = replace(sizes, **changed)
    tokens = sizes.batch * sizes.length
    make = partial(LanguageModel, sizes.hidden, sizes.layers, sizes.heads, sizes.vocabulary, sizes.length)
    inputs = partial(_tokens, sizes.vocabulary, sizes.batch, sizes.length + 1)
    weights = 2 * sizes.vocabulary * sizes.hidden + 12 * sizes.layers * sizes.hidden**2
    scores = 12 * sizes.layers * sizes.heads * tokens * sizes.length if setting.attention == "math" else 0
    need = 16 * weights + 4 * tokens * (40 * sizes.layers * sizes.hidden + 5 * sizes.vocabulary) + scores
    return Run(
        name, partial(_training, make, inputs), setting, sizes.batch, sizes.length, need,
        frozenset({"graphs"} if setting.launch == "graph" else {"compiler"} if setting.launch == "compiled" else ()),
        20.0 if setting.launch == "compiled" else 0.6,
    )  # fmt: skip


def _training(make: object, inputs: object, setting: Setting, device: str) -> Step:
    return training(make, inputs, setting, device)  # type: ignore[arg-type]


def _encoder(sizes: Sizes, name: str = "bert", setting: Setting = _MIXED) -> Run:
    """Return a run that trains BERT."""
    hidden, layers, heads, vocabulary, batch, length = sizes.bert
    make = partial(Bert, hidden, layers, heads, vocabulary, length)
    inputs = partial(text, vocabulary, batch, length)
    need = 16 * (vocabulary * hidden + 12 * layers * hidden**2) + 80 * layers * hidden * batch * length
    needs = {"graphs"} if setting.launch == "graph" else {"compiler"} if setting.launch == "compiled" else set[str]()
    seconds = 20.0 if setting.launch == "compiled" else 0.5
    return Run(name, partial(_training, make, inputs), setting, batch, length, need, frozenset(needs), seconds)


def _tokens(vocabulary: int, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randint(vocabulary, (batch, length), generator=generator),)


def _recorded(sizes: Sizes) -> Group:
    """Return the run that each setting of the profiler records; `measuring.recording_steps` names its pairs."""
    return Group("recording", (_encoder(sizes),), ())


def _spins(sizes: Sizes) -> Group:
    """Return the host slowed by a known time in each operator: `scale_host`."""
    runs = [_encoder(sizes, "bert_hook", Setting(spin_ns=0))]
    runs += [_encoder(sizes, f"bert_spin_{ns // 1000}us", Setting(spin_ns=ns)) for ns in sizes.spins_ns]
    return Group("spin", tuple(runs), _pairs(runs, ["scale_host:{host}"] * len(sizes.spins_ns)))


def _types(sizes: Sizes) -> Group:
    runs = [_decoder(sizes, "gpt_fp32", Setting("fp32")), _decoder(sizes, "gpt_tf32", Setting("tf32"))]
    runs[1] = replace(runs[1], needs=frozenset({"tensor_float"}))
    runs.append(_decoder(sizes))
    return Group("data type", tuple(runs), _pairs(runs, ["change_dtype:fp32->tf32", "change_dtype:fp32->bf16"]))


def _batches(sizes: Sizes) -> Group:
    grown = [sizes.batch * by for by in sizes.factors[1:]]
    runs = [_decoder(sizes), *(_decoder(sizes, f"gpt_b{batch}", batch=batch) for batch in grown)]
    return Group("batch", tuple(runs), _pairs(runs, [f"micro_batch:{batch}" for batch in grown]))


def _lengths(sizes: Sizes) -> Group:
    grown = [sizes.length * by for by in sizes.factors[1:]]
    runs = [_decoder(sizes), *(_decoder(sizes, f"gpt_n{length}", length=length) for length in grown)]
    return Group("length", tuple(runs), _pairs(runs, [f"sequence_length:{length}" for length in grown]))


def _layers(sizes: Sizes) -> Group:
    hidden, heads, layers = 2 * sizes.hidden, 2 * sizes.heads, 2 * sizes.layers
    runs = [
        _decoder(sizes),
        _decoder(sizes, f"gpt_h{hidden}", hidden=hidden, heads=heads),
        _decoder(sizes, f"gpt_l{layers}", layers=layers),
    ]
    return Group("hidden and layers", tuple(runs), _pairs(runs, [f"hidden:{hidden}", f"layers:{layers}"]))


def _launches(sizes: Sizes) -> Group:
    runs = [_encoder(sizes), _encoder(sizes, "bert_graph", Setting(launch="graph"))]
    return Group("launch", tuple(runs), _pairs(runs, ["remove_launch_overhead"]))


def _compiled(sizes: Sizes) -> Group:
    """Return eager and compiled training; compiling takes longest, so it comes last."""
    runs = [_encoder(sizes), _encoder(sizes, "bert_compiled", Setting(launch="compiled"))]
    return Group("compiler", tuple(runs), _pairs(runs, ["fuse:class=elementwise/dropout/normalization/reduction"]))


def _optimizers(sizes: Sizes) -> Group:
    runs = [_encoder(sizes, f"bert_{way}", Setting(optimizer=way)) for way in ("for-loop", "foreach", "fused")]
    return Group("optimizer", tuple(runs), _pairs(runs, ["fuse:optimizer", "fuse:optimizer"]))


def _attention(sizes: Sizes) -> Group:
    """Return the kernels of attention, swapped for kernels that take `{part}` times as long."""
    ways = ("math", "efficient", "flash")
    runs = [_decoder(sizes, f"gpt_{way}", Setting(attention=way)) for way in ways]
    runs[1] = replace(runs[1], needs=frozenset({"efficient_attention"}))
    swap = "swap_kernel:operator=aten\\:\\:bmm:{part}+swap_kernel:softmax:{part}"
    shape = (sizes.batch, sizes.heads, sizes.length, sizes.hidden // sizes.heads)
    return Group("attention", tuple(runs), _pairs(runs, [swap, swap]), partial(_attention_alone, shape))


def _attention_alone(shape: tuple[int, int, int, int], _: Run, device: str) -> Step:
    return attending(shape, device)


def _generator(sizes: Sizes) -> Callable[[], Generator]:
    longest = max(sizes.context, *sizes.prompts)
    return partial(Generator, sizes.hidden, sizes.layers, sizes.heads, sizes.vocabulary, longest)


def _serving(
    make: Callable[[], Generator], batch: int, length: int, decode: bool, setting: Setting, device: str
) -> Step:
    return serving(make, batch, length, setting, device, decode=decode)


def _decoding(sizes: Sizes) -> Group:
    """Return decoding of more sequences at once, and as one graph."""
    make, context = _generator(sizes), sizes.context
    runs = [
        Run(f"decode_b{batch}", partial(_serving, make, batch, context, True), _MIXED, batch, context)
        for batch in sizes.decode_batches
    ]
    first = runs[0]
    graph = replace(first, name=f"{first.name}_graph", setting=Setting(launch="graph"), needs=frozenset({"graphs"}))
    what_ifs = [f"micro_batch:{batch}" for batch in sizes.decode_batches[1:]]
    return Group("decode", (*runs, graph), _pairs([*runs, graph], [*what_ifs, "remove_launch_overhead"]))


def _prompts(sizes: Sizes) -> Group:
    make = _generator(sizes)
    runs = [
        Run(f"prefill_n{length}", partial(_serving, make, 1, length, False), _MIXED, 1, length)
        for length in sizes.prompts
    ]
    return Group("prefill", tuple(runs), _pairs(runs, [f"sequence_length:{length}" for length in sizes.prompts[1:]]))


def _serving_steps(sizes: Sizes) -> Group:
    """Return steps of serving as graphs, so that kernels alone take time: `predict` names them without a trace."""
    make, graph = _generator(sizes), Setting(launch="graph")
    shapes = [("decode", batch, sizes.context) for batch in sizes.decode_batches]
    shapes += [("prefill", 1, length) for length in sizes.prompts]
    runs = [
        Run(f"{phase}_b{batch}_n{length}_graph", partial(_serving, make, batch, length, phase == "decode"), graph,
            batch, length, needs=frozenset({"graphs"}))
        for phase, batch, length in shapes
    ]  # fmt: skip
    model = f"{sizes.layers}x{sizes.hidden}x{sizes.heads}x{sizes.vocabulary}"
    changes = [
        Change(before.name, after.name, f"predict:{old[0]}:{model}:{old[1]}x{old[2]}->{new[1]}x{new[2]}")
        for (before, old), (after, new) in pairwise(zip(runs, shapes, strict=True))
        if old[0] == new[0]
    ]
    return Group("serving", tuple(runs), tuple(changes))


def _copies(sizes: Sizes) -> Group:
    """Return copies that the host waits for, that are queued, and that run beside products."""
    ways = ("pinned", "stream", "pageable")
    runs = [
        Run(f"copies_{how}", partial(_prefetching, sizes.products, how), _MIXED, sizes.products[1],
            needs=frozenset() if how == "pageable" else frozenset({"pinned"}))
        for how in ways
    ]  # fmt: skip
    changes = (
        Change("copies_pinned", "copies_stream", "change_stream:copies:new"),
        Change("copies_pageable", "copies_pinned", "bound:copies"),
    )
    return Group("copies", tuple(runs), changes)


def _prefetching(products: tuple[int, int, int], how: str, _: Setting, device: str) -> Step:
    return prefetching(*products, how, device)


def _streams(sizes: Sizes) -> Group:
    """Return a layer of experts on one and on more streams."""
    hidden, inner, count, tokens = sizes.experts
    numbers = [each for each in (1, 2, 4, 8) if each <= count]
    runs = [
        Run(f"experts_s{streams}", partial(_experts, (hidden, inner, count), tokens, streams), _MIXED, tokens,
            needs=frozenset({"streams"} if streams > 1 else ()))
        for streams in numbers
    ]  # fmt: skip
    return Group("streams", tuple(runs), _pairs(runs, [f"concurrent_gemms:{each}" for each in numbers[1:]]))


def _experts(layer: tuple[int, int, int], tokens: int, streams: int, setting: Setting, device: str) -> Step:
    return experts(layer, tokens, streams, setting, device)


def _priorities(sizes: Sizes) -> Group:
    """Return products beside elementwise passes of the same and of a lower priority."""
    side, _, products = sizes.products
    runs = [
        Run(f"beside_{name}", partial(_beside, (side, products, products), priority), _MIXED, None,
            needs=frozenset({"priorities", "streams"}))
        for name, priority in (("equal", -1), ("low", 0))
    ]  # fmt: skip
    return Group("priority", tuple(runs), _pairs(runs, ["change_priority:elementwise:-1"]))


def _beside(numbers: tuple[int, int, int], priority: int, _: Setting, device: str) -> Step:
    return neighbours(*numbers, priority, device)


def _resnet(sizes: Sizes, name: str, setting: Setting, loader: tuple[int, str] | None = None) -> Run:
    """Return a run that trains ResNet on one batch again and again, or on what a loader brings."""
    width, batch, side = sizes.images
    make = partial(ResNet, sizes.blocks, width, 10)
    need = 4 * 60 * batch * side**2 * width // 4
    if loader is None:
        return Run(name, partial(_training, make, partial(_pixels, batch, side)), setting, batch, None, need)
    needs = frozenset({"pinned"} if loader[1] == "pinned" else ())
    return Run(name, partial(_loaded, make, (batch, side), loader), setting, batch, None, need, needs, 1.0)


def _pixels(batch: int, side: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    images = torch.randn((batch, 3, side, side), generator=generator)
    return images, torch.randint(10, (batch,), generator=generator)


def _loaded(
    make: Callable[[], ResNet], shape: tuple[int, int], loader: tuple[int, str], setting: Setting, device: str
) -> Step:
    batch, side = shape
    images = Images(32 * batch, side)
    feed = partial(loading, images, batch, *loader)
    return training(make, partial(_pixels, batch, side), setting, device, feed)


def _loaders(sizes: Sizes) -> Group:
    """Return images that are prepared in the process, by workers, and copied without waiting."""
    runs = [
        _resnet(sizes, "resnet_loader_0", _MIXED, (0, "pageable")),
        _resnet(sizes, "resnet_loader_2", _MIXED, (2, "pageable")),
        _resnet(sizes, "resnet_loader_2_pinned", _MIXED, (2, "pinned")),
    ]
    return Group("loader", tuple(runs), _pairs(runs, ["bound:loader", "bound:loader"]))


def _images(sizes: Sizes) -> Group:
    runs = [_resnet(sizes, f"resnet_{dtype}", Setting(dtype)) for dtype in ("fp32", "tf32", "bf16")]
    runs[1] = replace(runs[1], needs=frozenset({"tensor_float"}))
    return Group(
        "data type of ResNet", tuple(runs), _pairs(runs, [f"change_dtype:fp32->{each}" for each in ("tf32", "bf16")])
    )


def _translations(sizes: Sizes) -> Group:
    hidden, layers, vocabulary, batch, length = sizes.translation
    make = partial(Translation, hidden, layers, vocabulary)
    runs = [
        Run(f"translation_{name}", partial(_training, make, partial(_tokens, vocabulary, batch * by, length + 1)),
            Setting("fp32"), batch * by, length)
        for name, by in (("base", 1), ("batch", 2))
    ]  # fmt: skip
    return Group("batch of LSTMs", tuple(runs), _pairs(runs, [f"micro_batch:{2 * batch}"]))


def _recommenders(sizes: Sizes) -> Group:
    """Return a recommender whose host is slowed by a known time."""
    tables, rows, width, bag, batch = sizes.dlrm
    make = partial(_dense_recommender, tables, rows, width)
    inputs = partial(clicks, (tables, rows, bag), 13, batch)
    runs = [
        Run(f"dlrm_{name}", partial(_training, make, inputs), Setting("fp32", spin_ns=ns), batch, None,
            16 * tables * rows * width)
        for name, ns in (("hook", 0), ("spin", sizes.spins_ns[-1]))
    ]  # fmt: skip
    return Group("spin of DLRM", tuple(runs), _pairs(runs, ["scale_host:{host}"]))


def _dense_recommender(tables: int, rows: int, width: int) -> Recommender:
    """Return a recommender with dense gradients, which AdamW takes."""
    model = Recommender(tables, rows, width, (13, 64, 32), (64, 32))
    for table in model.tables:
        table.sparse = False
    return model
