"""Copies of weights made in memory, just in time or kept, against kernels of the GPU (JIT-Q, arXiv 2311.05034).

- `study_graph` writes a training step of a model as a trace, and `study` replays it under ``quantize_weights``.
- `waiting_ns` is the closed form of the time that products wait for copies.
- `reproduce` returns our figures for the published ones.

Examples
--------
The memory of a parameter that copies just in time save, in MX9, and in MX9 and MX6:

>>> from replay.formats import find_format
>>> [round(100 * capacity_saved(names), 1) for names in (["mx9"], ["mx9", "mx6"])]
[15.8, 23.8]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.files import read_toml, typed_table
from replay.calibration.parameters import Parameters
from replay.engine.timeline import replay
from replay.formats import find_format
from replay.from_trace import build_graph
from replay.graph.graph import RESOURCES, KernelGraph, TaskKind
from replay.plug_ins.weight_copies import (
    MOMENT_BYTES,
    WEIGHT_BYTES,
    copy_bytes,
    find_layer_weights,
    saved_share,
    weight_memory,
)
from replay.what_ifs import LayerQuantization, explain_layers, parse_what_if
from replay.workloads import load_training, training_trace
from replay.workloads.architecture import LARGEST, Transformer, read_or_shipped
from replay.workloads.jobs import Layout, TrainingJob
from replay.workloads.traced_job import find_job
from replay.workloads.training import PRIORS

Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
_VOCABULARY = 51200
#: Share of a step that two times may differ by from rounding to ns.
_ROUNDING = 1e-6
#: Share of a step up to which a product does not wait. Contention makes copies a few percent longer, so that those that
#: take as long as the layer before end a little after it: those count that have a slack of this share of their time.
_NO_WAIT, _SLOWER = 1e-5, 0.05


class JitqModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of the study, and the sequences of a step."""

    hidden: Size
    heads: Size
    length: Size
    sequences: Size


class JitqSweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model whose steps have other tokens: sequences of a length."""

    hidden: Size
    heads: Size
    length: Size
    sequences: tuple[Size, ...]

    @property
    def models(self) -> list[JitqModelTable]:
        """The model with each number of sequences."""
        return [JitqModelTable(self.hidden, self.heads, self.length, each) for each in self.sequences]


class JitqStudy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the study: device, formats of the copies, layers of a trace, models and sweep."""

    device: str
    formats: str
    layers: Size
    source: str
    models: dict[str, JitqModelTable]
    sweep: JitqSweep


def load_study(path: str | Path | None = None) -> JitqStudy:
    """Read a TOML file in the layout of `datasets/workloads/jitq.toml`, by default that one.

    Examples
    --------
    >>> [sequences * load_study().sweep.length for sequences in load_study().sweep.sequences]
    [64, 128, 256, 512, 1024, 2048, 4096]
    """
    return read_or_shipped(_read, path, "workloads/jitq.toml")


def _read(file: Path) -> JitqStudy:
    return typed_table(read_toml(file, "models of the study"), JitqStudy, str(file))


def study_graph(model: JitqModelTable, layers: int, device: Device, parameters: Parameters) -> KernelGraph:
    """Return the graph of a training step of some layers of a model in BF16, whose host is fast.

    The step has the embedding, the output layer and the optimizer too.
    """
    sizes = Transformer("study", "megatron", layers, model.hidden, model.heads, 4 * model.hidden, _VOCABULARY)
    job = TrainingJob(sizes, model.length, model.sequences, model.sequences, Layout(), precision="bf16")
    fit = load_training()
    fast = replace(fit.costs, waiting=0.0, **dict.fromkeys((name for name in PRIORS if name.endswith("_s")), 0.0))
    trace = training_trace(job, device, fit=replace(fit, costs=fast), parameters=parameters)
    return build_graph(trace, 0, parameters=parameters)


def throughput_lost(graph: KernelGraph, formats: str, maker: str, parameters: Parameters) -> float:
    """Return the share by which making copies slows a step: 1 - time before / time after."""
    changed = parse_what_if(f"quantize_weights:{formats}:{maker}")(graph, parameters)
    return 1.0 - replay(graph).makespan_ns / replay(changed).makespan_ns


def without_contention(graph: KernelGraph) -> KernelGraph:
    """Return a graph whose processing in memory slows no kernel, and is slowed by none."""
    tasks = graph.tasks
    demand = tasks.demand.copy()
    demand[tasks.kind == TaskKind.PIM, RESOURCES.index("hbm")] = 0.0
    return graph.with_tasks(demand=demand)


def waiting_ns(layers: Sequence[LayerQuantization]) -> float:
    """Return the time that products wait for copies just in time: sum of max(0, T_quantise - T_compute).

    T_quantise is the time of the copies of a layer, and T_compute that of the layer before. What kernels lose that
    share the memory comes on top.

    Parameters
    ----------
    layers : sequence of LayerQuantization
        Times of layers and passes of one rank.
    """
    return fsum(max(0.0, each.quantize_ns - each.compute_ns) for each in layers)


@dataclass(frozen=True)
class JitqOutcome:
    """A step under ``quantize_weights``.

    Parameters
    ----------
    tokens : int
        Tokens of the step: how often it uses each weight.
    lost, lost_kept, lost_gpu : float
        Share of the throughput that is lost if processing in memory makes copies just in time or keeps them, and if the
        GPU makes them.
    step_ns, replayed_ns : float
        Time of the step unchanged, and with copies just in time that slow no kernel.
    layers : tuple of LayerQuantization
        Times of the copies just in time.
    """

    tokens: int
    lost: float
    lost_kept: float
    lost_gpu: float
    step_ns: float
    replayed_ns: float
    layers: tuple[LayerQuantization, ...]

    @property
    def follows_closed_form(self) -> bool:
        """Whether a replay without contention is longer by the closed form."""
        return abs(self.replayed_ns - self.step_ns - waiting_ns(self.layers)) <= _ROUNDING * self.step_ns

    @property
    def waits_only_behind(self) -> bool:
        """Whether no product waits for copies that take less than the layer before, beside which they are slower."""
        beside = [each for each in self.layers if each.slack_ns >= _SLOWER * each.quantize_ns]
        return all(each.exposed_ns <= _NO_WAIT * self.step_ns for each in beside)


def study(model: JitqModelTable, given: JitqStudy, parameters: Parameters) -> JitqOutcome:
    """Return what making copies costs a step of a model.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> outcome = study(load_study().models["gpt3_7b"], load_study(), load_parameters())
    >>> outcome.lost < outcome.lost_gpu < 0.024, outcome.follows_closed_form
    (True, True)
    """
    graph = study_graph(model, given.layers, find_device(given.device), parameters)
    lost, kept, by_gpu = (
        throughput_lost(graph, given.formats, maker, parameters) for maker in ("jit_pim", "pim", "gpu")
    )
    what_if = parse_what_if(f"quantize_weights:{given.formats}")
    alone = replay(without_contention(what_if(graph, parameters))).makespan_ns
    layers = tuple(explain_layers(what_if, graph, parameters))
    return JitqOutcome(model.length * model.sequences, lost, kept, by_gpu, replay(graph).makespan_ns, alone, layers)


def capacity_saved(names: Sequence[str]) -> float:
    """Return the share of the memory of weights, moments and copies of both directions that the copies take.

    Parameters
    ----------
    names : sequence of str
        Formats of the copies.
    """
    return saved_share(copy_bytes(1.0, [find_format(name) for name in names], directions=2))


def capacity_saved_in_step(layers: int, names: Sequence[str], device: Device, parameters: Parameters) -> float:
    """Return the same for a traced step of some layers, of which copies of two are in use at once."""
    graph = study_graph(JitqModelTable(128, 2, 64, 1), layers, device, parameters)
    weights = [each for each in find_layer_weights(graph, find_job(graph)) if each.layer >= 0]
    return weight_memory(weights, [find_format(name) for name in names], WEIGHT_BYTES + MOMENT_BYTES).saved


#: Largest loss of throughput of the paper, and layers of a model whose copies are counted: those of GPT-3.
_MOST_LOST, _LAYERS = 0.024, 96


def reproduce(parameters: Parameters, given: JitqStudy) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/jitq.toml`."""
    models = [study(model, given, parameters) for model in given.models.values()]
    sweep = [study(model, given, parameters) for model in given.sweep.models]
    outcomes, both = [*models, *sweep], ["mx9", "mx6"]
    in_step = capacity_saved_in_step(_LAYERS, both, find_device(given.device), parameters)
    losses = np.array([each.lost for each in sweep])
    return {
        "capacity_largest": 100 * capacity_saved(both),
        "capacity_mx9_mx6": 100 * capacity_saved(both),
        "capacity_mx9": 100 * capacity_saved(["mx9"]),
        "capacity_in_step": 100 * in_step,
        "lost_within": float(sum(each.lost <= _MOST_LOST for each in models)),
        "lost_falls": float(sum(then < before for before, then in pairwise(losses.tolist()))),
        "lost_closed_form": float(sum(each.follows_closed_form for each in outcomes)),
        "lost_vanishes": float(sum(each.waits_only_behind for each in outcomes)),
        "pim_below_gpu": float(sum(each.lost < each.lost_gpu for each in outcomes)),
    }
