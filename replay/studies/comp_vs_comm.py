"""Computation against communication as transformers and hardware grow (arXiv 2302.02825).

A layer of Megatron-LM has two kinds of communication. Tensor-parallel ranks sum four activations in each iteration, and
nothing runs meanwhile: it is serialised. Replicas sum the gradients of its weights, beside the backward pass of the
next layer: it is overlapped.

- `TransformerLayer` holds the closed forms: FLOP and bytes of a layer, and their ratios, edge and slack.
- `counted` counts the same on the operators of a job (`replay.workloads`).
- `layer_times` times these operators, and `layers_trace` writes them as a trace, which the engine replays.
- `reproduce` returns our figures for the published ones, through such traces and the what-if ``scale_kernels``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import floor, log10
from pathlib import Path
from typing import Annotated

import msgspec

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import read_toml, typed_table
from profilers.trace.trace import Trace
from replay.analysis import exposure
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration, predict_collective
from replay.engine.timeline import replay
from replay.studies.workloads import layer_graph, layer_trace
from replay.what_ifs import parse_what_if
from replay.workloads.architecture import LARGEST, Step, Transformer, read_or_shipped
from replay.workloads.decoder import DecoderBlock, DecoderPass
from replay.workloads.jobs import Layout, TrainingJob
from replay.workloads.program import Collective, KernelCall, Wait
from replay.workloads.training import timed_steps
from replay.workloads.transformer import layer_block

Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
#: Bytes of an element, of 16 bits.
_BYTES = 2
_CALL_NS, _COMPUTE, _TENSOR, _DATA = 1500, 7, 20, 24
#: Operators that are products of weights; the products of attention have none.
_WEIGHTS = ("aten::mm", "aten::addmm")
_PRODUCTS = ("matmul", "batched_matmul")
#: Growth of compute over that of the network.
GROWTHS = (1, 2, 4)


@dataclass(frozen=True)
class TransformerLayer:
    """One layer of a transformer on one tensor-parallel rank, in closed form.

    FLOP are those of matrix products in one iteration; bytes are those of buffers that collectives sum, in 16 bits.

    Parameters
    ----------
    hidden : int
        Hidden size H; the feed-forward layer has 4 H.
    length, batch : int
        Tokens of a sequence (SL), and sequences (B).
    tensor : int
        Tensor-parallel ranks (TP).

    Examples
    --------
    >>> layer = TransformerLayer(12288, 2048, 1, 8)
    >>> layer.edge, layer.slack
    (14208.0, 4096.0)
    """

    hidden: int
    length: int
    batch: int = 1
    tensor: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of the batch, SL * B."""
        return self.length * self.batch

    @property
    def flops(self) -> float:
        """FLOP of an iteration: three times SL * B * (24 H^2 + 4 H SL) / TP, those of the forward pass."""
        forward = self.tokens * (24 * self.hidden**2 + 4 * self.hidden * self.length) / self.tensor
        return 3 * forward

    @property
    def tensor_bytes(self) -> float:
        """Bytes that four all-reduces of tensor-parallel ranks sum, each of H * SL * B elements."""
        return 4.0 * _BYTES * self.hidden * self.tokens

    @property
    def gradient_flops(self) -> float:
        """FLOP of the backward pass of products of weights: two products for each, 48 H^2 SL B / TP."""
        return 48 * self.hidden**2 * self.tokens / self.tensor

    @property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients that replicas sum, of 12 H^2 / TP weights."""
        return 12.0 * _BYTES * self.hidden**2 / self.tensor

    @property
    def edge(self) -> float:
        """FLOP for each serialised byte, (9 H + 1.5 SL) / TP: compute's edge over communication."""
        return (9 * self.hidden + 1.5 * self.length) / self.tensor

    @property
    def slack(self) -> float:
        """FLOP for each overlapped byte, 2 SL B: how much compute may hide a byte, whatever H and TP."""
        return 2.0 * self.tokens


def algorithm_rate(bus_rate: float, ranks: int) -> float:
    """Return the rate of an all-reduce, bytes of the buffer by its time, from the rate of a link.

    Each link of a ring carries ``2 * (n - 1) / n`` bytes for a byte of the buffer.

    Parameters
    ----------
    bus_rate : float
        Rate of a link in one direction, byte/s.
    ranks : int
        Ranks of the group, 2 or more.

    Examples
    --------
    >>> algorithm_rate(150e9, 4)
    100000000000.0
    """
    if ranks < 2:
        raise InvalidInputError(f"{ranks} ranks sum nothing; give 2 or more")
    return bus_rate * ranks / (2 * (ranks - 1))


def serialised_share(layer: TransformerLayer, flops_rate: float, bytes_rate: float) -> float:
    """Return the share of a layer's time that is serialised communication: 1 / (1 + edge * bytes / flops).

    Parameters
    ----------
    layer : TransformerLayer
        The layer.
    flops_rate : float
        Rate that products reach, FLOP/s.
    bytes_rate : float
        Rate of the all-reduce, as `algorithm_rate` returns it, byte/s.
    """
    return 1.0 / (1.0 + layer.edge * bytes_rate / flops_rate)


def evolved_share(share: float, growth: float) -> float:
    """Return a share of communication once compute is `growth` times faster: k f / (1 + (k - 1) f).

    Examples
    --------
    >>> evolved_share(0.5, 4.0)
    0.8
    """
    return growth * share / (1.0 + (growth - 1.0) * share)


def hiding_tokens(flops_rate: float, bytes_rate: float) -> float:
    """Return the tokens, SL * B, from which on the gradients' all-reduce hides: F / (2 BW).

    Rates are as in `serialised_share`.
    """
    return flops_rate / (2.0 * bytes_rate)


@dataclass(frozen=True)
class Counted:
    """What `TransformerLayer` has in closed form, counted on operators."""

    flops: float
    tensor_bytes: float
    gradient_flops: float
    gradient_bytes: float

    @property
    def edge(self) -> float:
        """FLOP for each serialised byte."""
        return self.flops / self.tensor_bytes

    @property
    def slack(self) -> float:
        """FLOP for each overlapped byte."""
        return self.gradient_flops / self.gradient_bytes


def counted(job: TrainingJob) -> Counted:
    """Count products, all-reduces and gradients of weights on the operators of one layer of a job.

    Biases and normalisations are left out, as in the study.
    """
    block = _block(job)
    steps = (*block.forward, *block.backward)
    flops = sum(step.operator.flops for step in steps if step.operator.kind in _PRODUCTS)
    moved = sum(step.operator.bytes_read for step in steps if step.collective)
    weights = [step for step in block.forward if step.name in _WEIGHTS]
    elements = sum(step.operator.dims[2] * step.operator.dims[3] for step in weights)
    backward = sum(each.flops for step in weights for each in step.gradient if each.kind in _PRODUCTS)
    return Counted(flops, moved, backward, float(elements * job.element_bytes))


def _block(job: TrainingJob) -> DecoderBlock:
    layout = job.layout
    run = DecoderPass(job.micro_batch, job.length, training=True, size=job.element_bytes, ranks=layout.tensor,
               sequence_parallel=layout.sequence_parallel)  # fmt: skip
    return layer_block(job.model, run)


def layer_job(layer: TransformerLayer, heads: int = 0, layers: int = 1) -> TrainingJob:
    """Return the job of a layer, whose tensor-parallel ranks are all in one node.

    Parameters
    ----------
    layer : TransformerLayer
        Sizes of the layer.
    heads : int
        Attention heads; by default one for each tensor-parallel rank.
    layers : int
        Layers of the model.
    """
    model = Transformer("layer", "megatron", layers, layer.hidden, heads or layer.tensor, 4 * layer.hidden, 51200)
    return TrainingJob(model, layer.length, layer.batch, layer.batch, Layout(tensor=layer.tensor,
                       node_devices=layer.tensor))  # fmt: skip


#: Steps of a layer, and the seconds that each takes alone.
TimedSteps = Sequence[tuple[Step, float]]
#: Times steps.
StepTimer = Callable[[Sequence[Step]], TimedSteps]


@dataclass(frozen=True)
class LayerTimes:
    """Times of the operators of a layer.

    Parameters
    ----------
    forward, backward : sequence of (Step, float)
        Steps in order, with seconds; tensor-parallel all-reduces among them.
    gradients_s : float
        Time of the all-reduce of the layer's gradients; 0 without replicas.
    ranks : (int, int)
        Tensor-parallel ranks, and replicas.
    """

    forward: TimedSteps
    backward: TimedSteps
    gradients_s: float
    ranks: tuple[int, int]


def layer_times(job: TrainingJob, device: Device, parameters: Parameters) -> LayerTimes:
    """Time a layer of a job on a device by the models of kernels and collectives."""
    block, fits = _block(job), parameters.calibration(CollectiveCalibration)
    forward, backward = (timed_steps(steps, job, device, parameters) for steps in (block.forward, block.backward))
    gradients = 0.0
    if job.layout.data > 1:
        size, topology = float(block.weights * job.element_bytes), job.layout.topology("data")
        gradients = float(predict_collective("all_reduce", [size], topology, device, fits).seconds[0])
    return LayerTimes(forward, backward, gradients, (job.layout.tensor, job.layout.data))


def layer_times_at(
    layer: TransformerLayer, flops_rate: float, bytes_rate: float, *, names: Sequence[str] = ()
) -> LayerTimes:
    """Time a layer at constant rates; only products and collectives take time.

    Parameters
    ----------
    layer : TransformerLayer
        Sizes of the layer; it has replicas, whose gradients are summed.
    flops_rate, bytes_rate : float
        As in `serialised_share`.
    names : sequence of str
        Names of the products that take time, such as those of weights alone; by default all.
    """
    block = _block(layer_job(layer))

    def timed(steps: Sequence[Step]) -> TimedSteps:
        seconds = [
            step.operator.bytes_read / bytes_rate
            if step.collective
            else step.operator.flops / flops_rate * (not names or step.name.removesuffix("_backward") in names)
            for step in steps
        ]
        of_products = [bool(step.collective) or step.operator.kind in _PRODUCTS for step in steps]
        return [(step, s) for step, s, kept in zip(steps, seconds, of_products, strict=True) if kept and s]

    gradients = layer.gradient_bytes / bytes_rate
    return LayerTimes(timed(block.forward), timed(block.backward), gradients, (layer.tensor, 2))


def layers_trace(times: LayerTimes, device: Device, layers: int = 1) -> Trace:
    """Return the trace of an iteration of layers on one rank that stands for all.

    Kernels after a tensor-parallel all-reduce wait for it. The gradients of a layer are summed on a stream of their
    own, beside the backward pass of the layer before it.

    Parameters
    ----------
    times : LayerTimes
        Times of a layer.
    device : Device
        Device of the catalogue that the trace names.
    layers : int
        Layers, all alike.
    """
    calls: list[KernelCall] = []
    for way, number in product(("forward", "backward"), range(layers)):
        _write(calls, times.forward if way == "forward" else times.backward, times.ranks[0], f"{way} {number}")
        if way == "backward" and times.gradients_s:
            exchange = Collective("all_reduce", 1, "data", times.ranks[1], f"gradients {number}")
            calls.append(_all_reduce(times.gradients_s, _DATA, exchange, len(calls) - 1))
    world = max(times.ranks[0], 1) * max(times.ranks[1], 1)
    return layer_trace("layers", device, [*calls, Wait()], world_size=world)


def _write(calls: list[KernelCall], steps: TimedSteps, ranks: int, what: str) -> None:
    """Append the kernels and all-reduces of a pass through a layer."""
    for number, (step, seconds) in enumerate(steps):
        if step.collective:
            exchange = Collective(step.collective, step.operator.dims[0], "tensor", ranks, f"{what} {number}")
            calls.append(_all_reduce(seconds, _TENSOR, exchange, len(calls) - 1))
            continue
        kind, dims = step.operator.kind, tuple(step.operator.dims)
        name = f"gemm_{kind}" if kind in _PRODUCTS else f"{kind}_kernel"
        shapes = ((dims[1], dims[3]), (dims[3], dims[2])) if kind in _PRODUCTS else (dims,)
        before = next((i for i in range(len(calls) - 1, -1, -1) if calls[i].stream != _DATA), -1)
        after = (before,) if before >= 0 and calls[before].stream == _TENSOR else ()
        calls.append(KernelCall(name, step.name, max(round(1e9 * seconds), 1), _CALL_NS, _COMPUTE, shapes[0],
                                operands=shapes[1:], after=after))  # fmt: skip


def _all_reduce(seconds: float, stream: int, exchange: Collective, before: int) -> KernelCall:
    """Return an all-reduce that waits for the call `before` it; for none if that is below 0."""
    name, after = f"ncclDevKernel_{exchange.kind}", (before,) if before >= 0 else ()
    return KernelCall(name, f"nccl:{exchange.kind}", max(round(1e9 * seconds), 1), _CALL_NS, stream,
                      (exchange.elements,), 24, after, exchange)  # fmt: skip


@dataclass(frozen=True)
class CommunicationShares:
    """How long layers take in the replay, and their communication.

    Parameters
    ----------
    step_ns : float
        Time of the iteration.
    communication_ns, exposed_ns : float
        Time with a collective on the device; and with nothing else.
    busy_ns : float
        Time with anything on the device.
    """

    step_ns: float
    communication_ns: float
    exposed_ns: float
    busy_ns: float

    @property
    def share(self) -> float:
        """Share of the device's busy time that is communication with nothing beside it."""
        return self.exposed_ns / self.busy_ns

    @property
    def hidden_ns(self) -> float:
        """Communication beside compute."""
        return self.communication_ns - self.exposed_ns


def faster_compute(growth: float) -> str:
    """Return the what-if of compute that is `growth` times faster, beside the same network.

    Examples
    --------
    >>> faster_compute(4), faster_compute(1)
    ('scale_kernels:kernels:0.25', 'nothing')
    """
    return "nothing" if growth == 1 else f"scale_kernels:kernels:{1 / growth:.12g}"


def layer_shares(trace: Trace, growths: Sequence[float], parameters: Parameters) -> list[CommunicationShares]:
    """Replay a trace of layers with compute that is faster by each factor."""
    graph, shares = layer_graph(trace, parameters), []
    for growth in growths:
        line = replay(parse_what_if(faster_compute(growth))(graph, parameters))
        (times,) = exposure(line).times
        shares.append(CommunicationShares(line.makespan_ns, times.communication_ns, times.exposed_ns, times.busy_ns))
    return shares


class ScaledModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the study."""

    hidden: Size
    layers: Size
    length: Size
    heads: Size
    tensor: Size


class ScalingSweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of each size of the study's sweep."""

    hidden: tuple[Size, ...]
    length: tuple[Size, ...]
    batch: tuple[Size, ...]
    tensor: tuple[Size, ...]

    @property
    def layers(self) -> list[TransformerLayer]:
        """Layers of all combinations."""
        return [TransformerLayer(*sizes) for sizes in product(self.hidden, self.length, self.batch, self.tensor)]


class CompVsCommStudy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the study: its device, models and sweep."""

    device: str
    batches: tuple[Size, ...]
    source: str
    models: dict[str, ScaledModelTable]
    sweep: ScalingSweep


def load_study(path: str | Path | None = None) -> CompVsCommStudy:
    """Read a TOML file in the layout of `datasets/workloads/comp_vs_comm.toml`, by default that one.

    Examples
    --------
    >>> len(load_study().sweep.layers)
    392
    """
    return read_or_shipped(_read, path, "workloads/comp_vs_comm.toml")


def _read(file: Path) -> CompVsCommStudy:
    return typed_table(read_toml(file, "models of the study"), CompVsCommStudy, str(file))


def model_shares(study: CompVsCommStudy, parameters: Parameters) -> dict[tuple[str, int], list[CommunicationShares]]:
    """Return the replay of a layer of each model and batch, for each of `GROWTHS`."""
    device, shares = find_device(study.device), {}
    for (name, model), batch in product(study.models.items(), study.batches):
        job = layer_job(TransformerLayer(model.hidden, model.length, batch, model.tensor), model.heads)
        trace = layers_trace(layer_times(job, device, parameters), device)
        shares[name, batch] = layer_shares(trace, GROWTHS, parameters)
    return shares


#: Layers of a full run, at least: those of BERT, the fewest of the models.
_LEAST_LAYERS = 24


def profiled_operators(sweep: ScalingSweep) -> tuple[int, int]:
    """Count the operators that are profiled for a sweep: by full runs, and by the study's strategy.

    A full run of each point executes every operator of 24 layers in one iteration. The strategy executes those of one
    layer, at the first point of the sweep, and the all-reduce once more for each further number of ranks.

    Returns
    -------
    full, strategy : int

    Examples
    --------
    >>> profiled_operators(load_study().sweep)
    (564480, 66)
    """
    block = _block(layer_job(sweep.layers[0]))
    operators = len(block.forward) + len(block.backward)
    return len(sweep.layers) * _LEAST_LAYERS * operators, operators + len(sweep.tensor) - 1


#: Rates of the test of the threshold, FLOP/s and byte/s: 1000 tokens hide the gradients.
_RATES = (1e14, 5e10)
#: Tokens, hidden size and layers of the test, and the rounding of its times.
_TOKENS, _HIDDEN, _LAYERS, _ROUNDING = (250, 500, 990, 1010, 2000, 4000), 4096, 4, 1e-3


def gradients_hide(tokens: int, parameters: Parameters) -> bool:
    """Return whether a replay of layers hides the all-reduces of gradients, but the last, which nothing follows.

    Products of weights alone take time, and 1000 tokens are the threshold of `hiding_tokens`.
    """
    times = layer_times_at(TransformerLayer(_HIDDEN, tokens), *_RATES, names=_WEIGHTS)
    trace = layers_trace(times, find_device("MI210"), _LAYERS)
    (replayed,) = layer_shares(trace, (1,), parameters)
    return replayed.exposed_ns <= 1e9 * times.gradients_s * (1 + _ROUNDING)


def reproduce(parameters: Parameters, study: CompVsCommStudy) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/comp_vs_comm.toml`."""
    replayed = model_shares(study, parameters)
    shares = {growth: [100 * each[i].share for each in replayed.values()] for i, growth in enumerate(GROWTHS)}
    closed = [(each[0].share, each[i].share, growth) for each in replayed.values() for i, growth in enumerate(GROWTHS)]
    layers = [layer for layer in study.sweep.layers if layer.length == study.sweep.length[0] and layer.batch == 1]
    operators = [(layer, counted(layer_job(layer))) for layer in layers]
    full, strategy = profiled_operators(study.sweep)
    threshold = hiding_tokens(*_RATES)
    return {
        **{f"share_{growth}x_low": min(values) for growth, values in shares.items()},
        **{f"share_{growth}x_high": max(values) for growth, values in shares.items()},
        "share_4x_within": float(sum(40 <= round(value) <= 75 for value in shares[4])),
        "evolved": float(sum(abs(evolved_share(at_1, k) - at_k) < _ROUNDING for at_1, at_k, k in closed)),
        "edge": float(sum(each.edge == layer.edge for layer, each in operators)),
        "slack": float(sum(each.slack == layer.slack for layer, each in operators)),
        "threshold": float(sum(gradients_hide(n, parameters) == (n >= threshold) for n in _TOKENS)),
        "profiling_orders": float(floor(log10(full / strategy))),
    }
