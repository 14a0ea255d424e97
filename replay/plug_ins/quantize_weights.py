"""What-if of low-precision copies of weights, made by the GPU or by processing in memory (PIM), just in time or kept.

A training job keeps weights in FP32 and multiplies copies of fewer bits. ``jit_pim`` makes the copies of a layer while
the layer before it runs, so that those of two layers exist at once. ``pim`` makes all of them when a step begins and
keeps them. ``gpu`` makes them by a kernel before the first product of each layer, in each pass. ``gpu_kept`` makes all
of them by kernels when a step begins and keeps them, as frameworks do over micro-batches.

    layer l        │ products of l ............ │ products of l + 1 ........
    jit_pim        │ quantise l + 1 ...... slack│ quantise l + 2 ......

`quantized_layers` returns the times of each layer and pass, for ``--why``. Source: JIT-Q (arXiv 2311.05034).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profilers.devices.catalogue import DTYPES, Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.architectures import architecture_of, load_architectures
from replay.costs.kernels import KernelCalibration, predict
from replay.costs.retiming import source_device
from replay.engine.engine import simulate
from replay.formats import Format, find_format
from replay.graph.edit import in_lane_order, previous_on_lane
from replay.graph.graph import PHASES, RESOURCES, Basis, EdgeKind, Edges, KernelGraph, TaskKind
from replay.memory.pim import CopyLayout, PimTime, add_pim_tasks, pim_quantization
from replay.plug_ins.weight_copies import (
    GRADIENT_BYTES,
    MOMENT_BYTES,
    SOURCE_BITS,
    WEIGHT_BYTES,
    LayerWeights,
    find_layer_weights,
    weight_memory,
)
from replay.what_ifs.dtype import retyped_tasks
from replay.what_ifs.job_graph import with_kernels_before
from replay.what_ifs.what_if import Argument, LayerQuantization, WhatIf, recipe, what_if_text
from replay.workloads import job_memory, read_job
from replay.workloads.job_memory import embedding_bytes
from replay.workloads.jobs import TrainingJob
from replay.workloads.traced_job import find_job

#: Who makes the copies, and when.
MAKERS = ("jit_pim", "pim", "gpu", "gpu_kept")
#: Makers that make all copies when a step begins and keep them, and those of the GPU.
KEEPING, _BY_GPU = ("pim", "gpu_kept"), ("gpu", "gpu_kept")
_HOW: Mapping[str, str] = {
    "jit_pim": "PIM, just in time", "pim": "PIM, kept for the step", "gpu": "GPU kernels, in each pass",
    "gpu_kept": "GPU kernels, kept for the step",
}  # fmt: skip
_TYPES = tuple(DTYPES)
#: Data type at whose rate a device multiplies a format, by the begin of its name.
_RATES: Mapping[str, str] = {
    "fp8": "fp8", "mxfp8": "fp8", "mxfp4": "nvfp4", "nvfp4": "nvfp4", "bf16": "bf16", "fp16": "fp16",
}  # fmt: skip
#: Formats with scales of blocks, by the begin of their name:
#: https://docs.nvidia.com/cuda/parallel-thread-execution (mma with block scaling), AMD Instinct CDNA 4 ISA.
_BLOCK_SCALED = ("mxfp", "nvfp")
#: Most formats of copies at once.
_MOST_FORMATS = 8


@recipe("job", "quantize_weights:mx9", Argument("formats", "data formats of the copies, such as mx9 or mx9,mx6"),
        Argument("maker", "who makes the copies", choices=MAKERS, default="jit_pim"),
        Argument("job", "TOML file with a table [job], for sizes that the trace does not tell", default=""),
)  # fmt: skip
def quantize_weights(formats: str, maker: str = "jit_pim", job: str = "") -> WhatIf:
    """Multiply low-precision copies of the weights, which MAKER makes in each training step.

    Layers of the traced transformer are found by their products. A forward product needs a copy of the weight, and the
    product of the gradient of its input a copy of the transpose, if the format has blocks (`seqpoint formats`). With
    ``jit_pim``, processing in memory makes the copies of a layer while the layer before runs, and products wait for
    them; with ``pim``, it makes all copies once a step; with ``gpu``, a kernel makes them before the first product of
    each layer in each pass; with ``gpu_kept``, kernels make all copies once a step. PIM and kernels share the channels
    of the memory. Products run at the rate of the first format if the device has one, else they keep their time. MXFP
    and NVFP formats need matrix units that take scales of blocks. Weights are FP32; a note has the bytes of weights,
    gradients, the states of Adam and copies. Edits of the device or the job go before it.

    Not modelled: the quantisation of activations and of gradients, the host's calls of the kernels, copies of experts
    and embeddings, and accuracy. No device has such memory today.

    Source: JIT-Q (arXiv 2311.05034); `replay.memory.pim` and `replay.costs.kernels` for the times.

    Raises
    ------
    NotFoundError
        There is no such format.
    InvalidInputError
        A format has no fewer bits than weights, or is given twice. When applied: the step is no training step of a
        transformer whose sizes are known, its products have fewer bits already, or the memory of the device cannot
        compute.
    """
    chosen = tuple(find_format(name) for name in formats.split(","))
    if len(chosen) > _MOST_FORMATS:
        raise InvalidInputError(f"copies in {len(chosen)} formats; {_MOST_FORMATS} at most")
    if twice := next((each.name for i, each in enumerate(chosen) if each in chosen[:i]), None):
        raise InvalidInputError(f"copies in {twice} twice; name each format once")
    if wide := next((each for each in chosen if each.bits_per_value >= SOURCE_BITS), None):
        raise InvalidInputError(f"{wide.name} has no fewer bits than weights, which are FP32; take another format")
    what = _Quantization(chosen, maker, read_job(job) if job else None)
    words = [formats, *([maker] if maker != MAKERS[0] or job else []), *([job] if job else [])]
    name = what_if_text("quantize_weights", *words)
    return WhatIf(name, what.changed, retimes=True, layers=what.layer_times)


@dataclass(frozen=True)
class _Plan:
    """What is made.

    Parameters
    ----------
    graph : KernelGraph
        Graph whose products have the rate of the format.
    layers, made : list of LayerWeights
        Weights that products read, and weights that copies are made of.
    seconds : array of float64
        Time of the copies of each of `made`.
    """

    graph: KernelGraph
    layers: list[LayerWeights]
    made: list[LayerWeights]
    seconds: Floats


@dataclass(frozen=True)
class _Quantization:
    """Formats of copies, who makes them, and sizes of the job that a user gives."""

    formats: tuple[Format, ...]
    maker: str
    job: TrainingJob | None

    def changed(self, graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        """Return the graph with the tasks that make copies."""
        plan, rate = self._plan(graph, parameters)
        changed, _ = self._with_copies(plan)
        return changed.with_notes([rate, *self._notes(plan)])

    def layer_times(self, graph: KernelGraph, parameters: Parameters) -> list[LayerQuantization]:
        """Return the times of each layer and pass whose copies are made."""
        plan, _ = self._plan(graph, parameters)
        changed, number = self._with_copies(plan)
        (start, end), (new_start, new_end) = simulate(plan.graph), simulate(changed)
        first = np.array([layer.products[0] for layer in plan.made])
        lane = plan.graph.tasks.lane
        previous = previous_on_lane(lane, np.arange(len(lane)), np.ones(len(lane), dtype=bool))[first]
        trigger = np.array([layer.trigger for layer in plan.made])
        begin = np.where(trigger >= 0, start[np.maximum(trigger, 0)], start[first])
        compute, quantize = (start[first] - begin) * (self.maker not in _BY_GPU), 1e9 * plan.seconds
        gaps = [
            starts[rows[first]] - np.where(previous >= 0, ends[rows[np.maximum(previous, 0)]], 0.0)
            for starts, ends, rows in ((start, end, np.arange(len(start))), (new_start, new_end, number))
        ]
        queued = _queued(plan.made, quantize) if self.maker == "pim" else quantize
        # A gap may hold the delay of another stage too.
        exposed = np.clip(gaps[1] - gaps[0], 0.0, queued)
        if self.maker == "gpu_kept":
            exposed = _shared(plan.made, gaps[1] - gaps[0], quantize)
        return [
            LayerQuantization(
                "",
                layer.rank,
                graph.iterations[layer.iteration],
                PHASES[layer.way],
                layer.layer,
                layer.elements,
                *times,
            )
            for layer, *times in zip(
                plan.made, *(each.tolist() for each in (compute, quantize, compute - queued, exposed)), strict=True
            )
        ]

    def _plan(self, graph: KernelGraph, parameters: Parameters) -> tuple[_Plan, str]:
        """Return the products at the rate of the format, the copies to make, and a note on the rate."""
        graph = in_lane_order(graph)
        device, found = source_device(graph), find_job(graph, self.job)
        if not found.training:
            raise InvalidInputError(
                "the step has no backward pass. In inference weights do not change, so low-precision copies are made "
                "once and nothing is quantised in a step. Possible: change_dtype:bf16->fp8"
            )
        layers = find_layer_weights(graph, found)
        self._check_step(graph, layers)
        typed, note = self._at_rate(graph, layers, device, parameters)
        made = _once(layers) if self.maker in KEEPING else layers
        seconds = (
            self._gpu_seconds(made, device, parameters) if self.maker in _BY_GPU else self._pim_seconds(made, device)
        )
        return _Plan(typed, layers, made, seconds), note

    def _check_step(self, graph: KernelGraph, layers: Sequence[LayerWeights]) -> None:
        """Raise an error if the products of weights have fewer bits already, or those of a format of the copies."""
        rows = [row for layer in layers for row in layer.products]
        types = {_TYPES[each] for each in np.unique(graph.tasks.dtype[rows]).tolist() if each >= 0}
        if narrow := sorted(types & {"fp8", "int8", "nvfp4"}):
            raise InvalidInputError(
                f"products of weights run in {narrow[0]} in this step, so low-precision copies are in it already. "
                "Possible: a step in bf16, fp16 or fp32"
            )
        if same := next((each.name for each in self.formats if each.name in types), None):
            raise InvalidInputError(f"the step multiplies weights in {same} already; take a format of fewer bits")

    def _at_rate(
        self, graph: KernelGraph, layers: Sequence[LayerWeights], device: Device, parameters: Parameters
    ) -> tuple[KernelGraph, str]:
        """Return the graph with products of weights at the rate of the first format, and a note on what changed."""
        name = self.formats[0].name
        dtype = _RATES.get(name) or _RATES.get(name.split("_")[0], "")
        if name.startswith(_BLOCK_SCALED) and not architecture_of(device.architecture).block_scales:
            known = ", ".join(name for name, each in load_architectures().items() if each.block_scales)
            return graph, (
                f"quantize_weights: {device.name} has no rate for {name}, since its matrix units take no scales of "
                f"blocks ({known} do): products keep their time"
            )
        if f"{dtype}_tflops" not in device.figures:
            return graph, f"quantize_weights: {device.name} has no rate for {name}: products keep their time"
        rows = np.array([row for layer in layers for row in layer.products], dtype=np.int64)
        before, changed = graph.tasks.dtype[rows], 0
        for old in np.unique(before[before >= 0]).tolist():  # one or two types
            if device.flops_per_s(_TYPES[old]) < device.flops_per_s(dtype):
                chosen = np.zeros(len(graph.tasks), dtype=bool)
                chosen[rows[before == old]] = True
                graph = retyped_tasks(graph, chosen, (_TYPES[old], dtype), parameters)
                changed += int(chosen.sum())
        first = f", the rate of {name}, the first format" if len(self.formats) > 1 else ""
        return graph, (
            f"quantize_weights: {changed} of {len(rows)} products of weights run at the rate of {dtype}{first}. "
            "Activations and gradients are not quantised, so the gain is an upper bound"
        )

    def _pim_seconds(self, layers: Sequence[LayerWeights], device: Device) -> Floats:
        """Return the time of the copies of each layer by PIM, s."""
        elements = np.array([layer.elements for layer in layers])
        directional = [each for each in self.formats if each.is_directional]
        plain = [each for each in self.formats if not each.is_directional]
        block = max((each.block for each in self.formats), default=1)

        def seconds(copies: Sequence[Format], transposed: int) -> Floats:
            bits = [float(each.bits_per_value) for each in copies]
            return pim_quantization(elements, SOURCE_BITS, bits, device, CopyLayout(block, transposed)).seconds

        both = seconds([*self.formats, *directional], len(directional))
        back = np.array([layer.is_backward for layer in layers])
        once = np.where(back, seconds([*plain, *directional], len(directional)), seconds(self.formats, 0))
        return once + np.array([layer.share_again for layer in layers]) * (both - once)

    def _gpu_seconds(self, layers: Sequence[LayerWeights], device: Device, parameters: Parameters) -> Floats:
        """Return the time of the copies of each layer by kernels, one for each weight and format, s."""
        bits = [float(each.bits_per_value) for each in self.formats]
        directional = np.array([each.is_directional for each in self.formats])
        shapes = sorted({shape for layer in layers for shape in (*layer.shapes, *layer.again)})
        dims = [[*shape, SOURCE_BITS / 8, each] for shape in shapes for each in bits]
        times = predict(
            "quantization", dims, device, calibration=parameters.calibration(KernelCalibration), dtype="fp8"
        ).seconds.reshape(len(shapes), -1)
        of_shape = dict(zip(shapes, times.sum(axis=1).tolist(), strict=True))
        of_again = dict(zip(shapes, times[:, directional].sum(axis=1).tolist(), strict=True))
        return np.array(
            [
                sum(map(of_shape.__getitem__, each.shapes)) + sum(map(of_again.__getitem__, each.again))
                for each in layers
            ]
        )

    def _with_copies(self, plan: _Plan) -> tuple[KernelGraph, Ints]:
        """Return the graph with the tasks that make copies, and the new rows of the graph's own tasks."""
        graph, layers = plan.graph, plan.made
        names = [f"quantise to {'+'.join(each.name for each in self.formats)}: {layer.label}" for layer in layers]
        first = np.array([layer.products[0] for layer in layers])
        if self.maker == "gpu":
            changed, rows = with_kernels_before(graph, names, first, _kernel_columns(1e9 * plan.seconds))
            return changed, rows[: len(graph.tasks)]
        if self.maker == "gpu_kept":
            steps = np.array([(layer.rank, layer.iteration) for layer in layers])
            _, start, number = np.unique(steps, axis=0, return_index=True, return_inverse=True)
            label = f"{names[0].split(':')[0]}: all layers"
            columns = _kernel_columns(np.bincount(number.reshape(-1), 1e9 * plan.seconds).astype(float))
            changed, rows = with_kernels_before(graph, [label] * len(start), first[start], columns)
            return changed, rows[: len(graph.tasks)]
        triggers = [layer.trigger for layer in layers]
        changed = add_pim_tasks(graph, names, PimTime(plan.seconds, {}), triggers, first)
        earlier = np.array([layer.before for layer in layers])
        new = len(graph.tasks) + np.flatnonzero(earlier >= 0)
        waits = Edges.of(earlier[earlier >= 0], new, kind=EdgeKind.WAIT_INFERRED)
        return replace(changed, edges=changed.edges.joined(waits)), np.arange(len(graph.tasks))

    def _is_of_job(self, plan: _Plan, job: TrainingJob) -> bool:
        """Whether the step is that of the job file: edits before may have changed the weights of a rank."""
        found, given = find_job(plan.graph), find_job(plan.graph, job)
        return (
            found.tensor == job.layout.tensor
            and all(found.sizes.get(name, size) == size for name, size in given.sizes.items() if name != "vocabulary")
            and found.layers * job.layout.pipeline == job.model.layers
        )

    def _notes(self, plan: _Plan) -> list[str]:
        """Return what is made, and the memory of the rank with most weights."""
        states = WEIGHT_BYTES + MOMENT_BYTES
        bare, memory = (weight_memory(plan.layers, self.formats, each) for each in (states, states + GRADIENT_BYTES))
        elements = memory.states_bytes / (states + GRADIENT_BYTES)
        counted = "layers and output layer alone: no embedding, no sharding of states"
        if self.job is not None and self._is_of_job(plan, self.job):
            whole = job_memory(self.job)
            others = embedding_bytes(self.job, whole.stage) if self.job.precision in _IN_16_BITS else whole.weights
            memory = replace(memory, states_bytes=whole.gradients + whole.optimizer + others)
            bare = replace(bare, states_bytes=whole.optimizer + others)
            counted = f"all that the job file tells, with sharding {self.job.sharding}"
        steps = [(layer.rank, layer.iteration) for layer in plan.made]
        longest = max(1e3 * plan.seconds[[each == step for each in steps]].sum() for step in set(steps))
        saved = [f"{100 * abs(each.saved):.1f} % {'less' if each.saved >= 0 else 'more'}" for each in (memory, bare)]
        hypothetical = "" if self.maker in _BY_GPU else ". No device on sale has such memory: hypothetical"
        return [
            f"quantize_weights: a rank has {elements / 1e6:.4g} M weights that products read; copies by {self.maker} "
            f"({_HOW[self.maker]}) take {longest:.3g} ms of a step{hypothetical}",
            f"quantize_weights: a rank has {memory.states_bytes / 1e9:.3g} GB of weights, gradients and Adam's states "
            f"({counted}); kept copies add {memory.copies_bytes / 1e9:.3g} GB, those of two layers just in time "
            f"{memory.live_bytes / 1e9:.3g} GB: {saved[0]} in all ({saved[1]} without gradients)",
        ]


#: Precisions of jobs whose FP32 weights are a part of the optimizer's states, so that copies replace those of 16 bits.
_IN_16_BITS = ("bf16", "fp16")


def _once(layers: Sequence[LayerWeights]) -> list[LayerWeights]:
    """Return the weights of each layer once an iteration, whose copies may all begin with the first."""
    starts: dict[tuple[int, int], LayerWeights] = {}
    once: dict[tuple[int, int, int], LayerWeights] = {}
    for layer in layers:
        start = starts.setdefault((layer.rank, layer.iteration), layer)
        key = (layer.rank, layer.iteration, layer.layer)
        transposes = tuple((columns, rows) for rows, columns in layer.shapes)
        once.setdefault(key, replace(layer, trigger=start.trigger, before=start.before, again=transposes))
    return list(once.values())


def _kernel_columns(duration_ns: Floats) -> Mapping[str, Any]:
    """Return the columns of kernels that are bound by memory and fill the device."""
    demand = np.zeros(len(RESOURCES))
    demand[[RESOURCES.index("cu"), RESOURCES.index("hbm")]] = 1.0
    return {
        "kind": int(TaskKind.KERNEL),
        "class_": CLASSES.index("elementwise"),
        "duration_ns": duration_ns,
        "demand": demand,
        "occupies": 1.0,
        "basis": int(Basis.MODELLED),
    }


def _shared(layers: Sequence[LayerWeights], delay_ns: Floats, quantize_ns: Floats) -> Floats:
    """Return the delay of the first layer of each iteration, shared by the time of the copies of all its layers."""
    steps = np.array([(layer.rank, layer.iteration) for layer in layers])
    _, start, number = np.unique(steps, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(number.reshape(-1), quantize_ns)
    share = np.clip(delay_ns[start], 0.0, total) / np.maximum(total, 1e-9)
    return np.asarray(quantize_ns * share[number.reshape(-1)])


def _queued(layers: Sequence[LayerWeights], quantize_ns: Floats) -> Floats:
    """Return the time until the copies of each layer are made, if all of an iteration begin together."""
    total: dict[tuple[int, int], float] = {}
    queued = []
    for layer, ns in zip(layers, quantize_ns.tolist(), strict=True):
        key = (layer.rank, layer.iteration)
        total[key] = total.get(key, 0.0) + ns
        queued.append(total[key])
    return np.array(queued)
