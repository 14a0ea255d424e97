"""Compare BERT-Large with what was measured in PATH: shares of a layer's operators, and ratios of training throughput.

A table of operators has the columns node, device, model, mode, batch, seq_len, fw_ms and bw_ms, FP32. A table of
throughput has framework, gpu, phase, sequence_tokens, nodes_count, gpus_count, precision, micro_batch_sequences,
grad_accum_steps and throughput_sequences_per_s: pre-training with LAMB.

\b
seqpoint validate bert ../shared/data/models ../shared/data/training
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import read_toml, typed_tables
from profilers.trace.arrays import Bools
from profilers.trace.trace import Trace
from replay import workloads
from replay.calibration.parameters import Parameters
from replay.calibration.tables import MeasuredTable, Row, measured_count, measured_number, measured_rows, refuse_row
from replay.costs.kernels import KernelCalibration, Machine
from replay.graph.operators import Operator
from replay.studies.workloads import step_ns
from replay.workloads.architecture import LARGEST, PRODUCT_SHARE, Step, read_or_shipped, time_operators
from replay.workloads.decoder import DecoderPass
from replay.workloads.training import job_loads
from replay.workloads.transformer import head_block, layer_block
from seqpoint.characterization import Characterization, characterize_trace
from seqpoint.kernel_facts import COMMUNICATION, KERNEL_PHASES, KernelFacts
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import (
    SuiteOptions,
    SuiteResult,
    TablePart,
    ValidationRow,
    followed,
    grouped,
    suite_of_parts,
    summary_row,
)

_MODEL = "bert_large"
_PRODUCTS = ("matmul", "batched_matmul")
#: A what-if after which launches cost next to nothing: the study is of device time.
_NO_HOST = "scale_host:0.01"
#: Kernels between the products of a layer, which a compiler fuses.
_FUSED = "fuse:class=elementwise/dropout/normalization"
#: Share of the time from which memory-bound kernels count as prominent.
_PROMINENT = 0.25
_Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class CaseTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training step in `datasets/workloads/bert.toml`."""

    length: _Size
    batch: _Size
    precision: str
    micro_batch: _Size = 0
    tensor: _Size = 1


@dataclass(frozen=True)
class BertCase:
    """A training step of BERT on a device.

    Parameters
    ----------
    name : str
        Its name in the file.
    job : TrainingJob
        The step.
    device : Device
        Device of every rank.
    """

    name: str
    job: workloads.TrainingJob
    device: Device


def load_cases(path: str | Path | None = None) -> Mapping[str, BertCase]:
    """Read training steps from a TOML file in the layout of `datasets/workloads/bert.toml`, by default that one."""
    return read_or_shipped(_read_cases, path, "workloads/bert.toml")


def _read_cases(file: Path) -> Mapping[str, BertCase]:
    content = read_toml(file, "training steps")
    device = find_device(str(content.get("device", "")))
    model = workloads.find_transformer(str(content.get("model", "")), workloads.load_transformers())
    cases = {}
    for name, each in typed_tables(content, "cases", CaseTable, file).items():
        layout = workloads.Layout(tensor=each.tensor)
        job = workloads.TrainingJob(model, each.length, each.batch, each.micro_batch or each.batch, layout,
                                    precision=each.precision, optimizer="lamb")  # fmt: skip
        cases[name] = BertCase(name, job, device)
    return cases


@dataclass(frozen=True)
class BertProfile:
    """What `seqpoint characterize` says of a training step.

    Parameters
    ----------
    case : BertCase
        The step.
    trace : Trace
        Its synthetic trace.
    """

    case: BertCase
    trace: Trace

    @cached_property
    def characterization(self) -> Characterization:
        """The characterisation of the trace."""
        return characterize_trace(self.trace)

    @property
    def facts(self) -> KernelFacts:
        """Kernels of the trace."""
        return self.characterization.facts

    @cached_property
    def product_flops(self) -> dict[str, float]:
        """FLOP of the layers' products: linear projections, products of attention, and the feed-forward part."""
        return {part: float(self.facts.flops[rows].sum()) for part, rows in self._products.items()}

    @cached_property
    def _products(self) -> dict[str, Bools]:
        kinds = np.array([*(operator.kind for operator in self.facts.operators), ""])[self.facts.work]
        sizes = _linear_flops(self.case.job)
        return {part: (kinds == "matmul") & (self.facts.flops == flop) for part, flop in sizes.items()} | {
            "attention": kinds == "batched_matmul"
        }

    @property
    def products(self) -> Bools:
        """Mask of the kernels that are products of the layers."""
        return np.asarray(np.logical_or.reduce(list(self._products.values())))

    def intensity(self, part: str) -> float:
        """Return the FLOP/byte of a part's products in the forward pass."""
        rows = self._products[part] & self.in_phase("forward")
        return float(self.facts.flops[rows].sum() / self.facts.bytes[rows].sum())

    def in_phase(self, phase: str) -> Bools:
        """Return the mask of the kernels of a phase."""
        return np.asarray(self.facts.phase == KERNEL_PHASES.index(phase))

    def share(self, rows: Bools) -> float:
        """Return the share of some kernels in the time of all."""
        duration = self.facts.duration_ns
        return float(duration[rows].sum() / duration.sum())

    @property
    def lamb_share(self) -> float:
        """Share of the optimizer in the time of all kernels."""
        return self.share(self.in_phase("optimizer"))

    def lamb_bytes(self, parameters: Parameters) -> float:
        """Return the bytes that the optimizer moves for each parameter of a rank."""
        (load,) = job_loads([self.case.job], self.case.device, parameters)
        moved = self.facts.bytes[self.in_phase("optimizer")].sum()
        return float(moved / (load.stages[0].weights * load.job.layout.tensor))

    @property
    def replicated_share(self) -> float:
        """Share of normalisations, which every rank computes for itself, and of collectives."""
        return self.share(self.facts.in_classes(("normalization",)) | self.in_phase(COMMUNICATION))

    @property
    def attention_bound(self) -> frozenset[str]:
        """What bounds the products of attention."""
        return frozenset(row.bound for row in self.characterization.rows("shape") if row.name == "aten::bmm")


def _linear_flops(job: workloads.TrainingJob) -> dict[str, float]:
    """Return the FLOP of one projection and of one product of the feed-forward part on a rank."""
    tokens, model, ranks = job.micro_batch * job.length, job.model, job.layout.tensor
    return {
        "projection": 2.0 * tokens * model.hidden * model.hidden / ranks,
        "feed-forward": 2.0 * tokens * model.hidden * model.feedforward / ranks,
    }


def profile_of(case: BertCase, parameters: Parameters) -> BertProfile:
    """Return the profile of a training step with predicted times."""
    trace = workloads.training_trace(case.job, case.device, fit=workloads.load_training(), parameters=parameters)
    return BertProfile(case, trace)


def reproduce(parameters: Parameters, cases: Mapping[str, BertCase]) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/bert.toml`."""
    steps = {name: profile_of(case, parameters) for name, case in cases.items()}
    single = [step for step in steps.values() if step.case.job.micro_batches == step.case.job.layout.tensor == 1]
    return {
        **_arithmetic(steps),
        **_lamb(steps, single, parameters),
        **_bounds(steps, single),
        **_what_ifs(single, parameters),
    }


def _arithmetic(steps: Mapping[str, BertProfile]) -> dict[str, float]:
    figures = {}
    for length, name in ((128, "n128_b32_fp32"), (512, "n512_b4_fp32")):
        flops = steps[name].product_flops
        for part, value in flops.items():
            figures[f"share_{part.replace('-', '_')}_n{length}"] = 100 * value / sum(flops.values())
    for name in ("n128_b32", "n128_b4", "n512_b4"):
        figures[f"tflop_{name}"] = sum(steps[f"{name}_fp32"].product_flops.values()) / 1e12
    step = steps["n128_b32_fp32"]
    for part in ("projection", "attention", "feed-forward"):
        figures[f"intensity_{part.replace('-', '_')}"] = step.intensity(part)
    flop = [float(step.facts.flops[step.products & step.in_phase(phase)].sum()) for phase in ("backward", "forward")]
    return figures | {"backward_over_forward": flop[0] / flop[1]}


def _lamb(steps: Mapping[str, BertProfile], single: Sequence[BertProfile], parameters: Parameters) -> dict[str, float]:
    in_fp32 = [step for step in single if step.case.job.precision == "fp32"]
    times = [step.facts.duration_ns[step.in_phase("optimizer")].sum() for step in in_fp32]
    share = {name: step.lamb_share for name, step in steps.items()}
    falls = [share[f"n128_b32_{each}_micro"] < share[f"n128_b4_{each}"] for each in ("fp32", "fp16")]
    return {
        "lamb_bytes": steps["n128_b32_fp32"].lamb_bytes(parameters),
        "lamb_spread": float(max(times) / min(times)),
        "lamb_share_rises": _rises(share),
        "micro_batches_hide_lamb": float(sum(falls)),
    }


def _rises(values: Mapping[str, float]) -> float:
    """Return in how many of five cases a value by case rises as the batch falls, or under mixed precision."""
    pairs = [
        *((f"n128_b32_{each}", f"n128_b4_{each}") for each in ("fp32", "fp16")),
        *((f"{each}_fp32", f"{each}_fp16") for each in ("n128_b32", "n128_b4", "n512_b4")),
    ]
    return float(sum(values[more] > values[less] for less, more in pairs))


def _bounds(steps: Mapping[str, BertProfile], single: Sequence[BertProfile]) -> dict[str, float]:
    classes = [step.characterization.rows("class")[0].name for step in single]
    split = [steps[f"n128_b32_fp32{each}"].replicated_share for each in ("", "_tp2", "_tp4", "_tp8")]
    mixed = [
        (steps[f"{each}_fp32"].share(steps[f"{each}_fp32"].products), steps[f"{each}_fp16"])
        for each in ("n128_b32", "n128_b4", "n512_b4")
    ]
    return {
        "gemms_dominate": float(sum(name == "gemm" for name in classes)),
        "memory_prominent": float(sum(step.characterization.bound_shares["memory"] >= _PROMINENT for step in single)),
        "attention_memory_bound": float(sum(step.attention_bound == {"memory"} for step in single)),
        "attention_intensity_most": max(
            step.intensity("attention") for step in single if step.case.job.precision == "fp32"
        ),
        "tensor_raises_replicated": float(sum(more > less for less, more in pairwise(split))),
        "mixed_lowers_gemm_share": float(sum(other.share(other.products) < share for share, other in mixed)),
    }


def _what_ifs(single: Sequence[BertProfile], parameters: Parameters) -> dict[str, float]:
    gains = {}
    for step in single:
        texts = [f"{_NO_HOST}+{each}" for each in ("near_memory:optimizer", _FUSED)]
        times = step_ns(step.trace, [_NO_HOST, *texts], parameters)
        gains[step.case.name] = [times[_NO_HOST] / times[text] for text in texts]
    near, fused = ({name: values[i] for name, values in gains.items()} for i in range(2))
    return {
        "near_memory_follows_lamb": _rises(near),
        "fusion_gains": float(sum(gain > 1 for gain in fused.values())),
    }


#: Operators of a layer.
GROUPS = ("projection", "feed-forward", "attention", "softmax", "dropout", "normalization", "elementwise")
_NODE_COLUMNS = ("node", "device", "model", "mode", "batch", "seq_len", "fw_ms", "bw_ms")
_THROUGHPUT_COLUMNS = (
    *("framework", "gpu", "phase", "sequence_tokens", "nodes_count", "gpus_count", "precision"),
    *("micro_batch_sequences", "grad_accum_steps", "throughput_sequences_per_s"),
)
#: Smallest share that the mean error counts, and the largest mean error of shares and median error of ratios.
_LEAST_SHARE, _LIMIT = 0.05, 0.15
_FORMATS = {"FP16-mixed": "fp16", "TF32": "tf32", "FP32": "fp32"}
_GPUS = {"V100-16GB": "V100-SXM2-16GB", "V100-32GB": "V100-SXM2-32GB"}
#: Characters of a text that a message repeats.
_SHOWN = 40


@dataclass(frozen=True)
class MeasuredLayer:
    """Measured times of the operators of a layer, each waited for.

    Parameters
    ----------
    device : Device
        Device that ran.
    run : DecoderPass
        Batch, length, and whether the backward pass ran too.
    seconds : mapping of str to float
        Time of each of `GROUPS`.
    source : str
        File.
    """

    device: Device
    run: DecoderPass
    seconds: Mapping[str, float]
    source: str

    @property
    def name(self) -> str:
        """Kind of pass, batch and length, and the device."""
        kind = "training" if self.run.training else "inference"
        return f"{kind} {self.run.batch}x{self.run.length}, {self.device.name}"


def _node_group(node: str) -> str:
    """Return the group of an operator of the first layer, by the name of its node in Hugging Face's BERT; or nothing.

    Examples
    --------
    >>> [_node_group(node) for node in ("bert_encoder_layer_0_output_dense", "matmul_1", "gelu_1")]
    ['feed-forward', 'attention', '']
    """
    inner = node.removeprefix("bert_encoder_layer_0_")
    if inner != node:
        if "dropout" in inner:
            return "dropout"
        if "layer_norm" in inner:
            return "normalization"
        return "feed-forward" if inner in ("intermediate_dense", "output_dense") else "projection"
    others = {"matmul": "attention", "matmul_1": "attention", "softmax": "softmax"}
    return others.get(node, "elementwise" if node in ("truediv", "add_7", "gelu", "add_9", "add_10") else "")


def _read_layers(file: Path) -> list[MeasuredLayer]:
    table = MeasuredTable.open(file)
    modes = table.texts("mode", ("inf", "train"), "mode")
    nodes, models, names = (table.texts(name) for name in ("node", "model", "device"))
    devices, sizes = table.devices(names), [table.numbers(name, whole=True) for name in ("batch", "seq_len")]
    took = table.floats("fw_ms") + table.floats("bw_ms")
    found: dict[tuple[str, bool, int, int], dict[str, float]] = {}
    rows = [row for row in np.flatnonzero(models == _MODEL).tolist() if _node_group(nodes[row])]
    rule = "it must be finite and above zero"
    table.refuse((row, f"fw_ms + bw_ms is {took[row]:g}; {rule}") for row in rows if not 0 < took[row] < np.inf)
    for row in rows:  # a Python loop over operators, about 1 us each
        key = (names[row], modes[row] == "train", int(sizes[0][row]), int(sizes[1][row]))
        times = found.setdefault(key, dict.fromkeys(GROUPS, 0.0))
        times[_node_group(nodes[row])] += took[row] / 1e3
    layers = []
    for (name, trains, batch, length), times in found.items():
        if missing := [group for group, seconds in times.items() if not seconds]:
            refuse_row(file, f"{name}, {batch} x {length}", f"no operator of {', '.join(missing)}")
            continue
        layers.append(MeasuredLayer(devices[name], DecoderPass(batch, length, trains), times, str(file)))
    return layers


def layer_seconds(
    run: DecoderPass, device: Device, parameters: Parameters, without: Sequence[str] = ()
) -> dict[str, float]:
    """Return the predicted time of the operators of a layer of BERT-Large, each waited for, in s by group."""
    model = workloads.load_transformers()[_MODEL]
    operators: list[Operator] = []
    groups: list[str] = []
    for step in layer_block(model, run).forward:
        alike = [step.operator, *(step.gradient if run.training else ())]
        operators += alike
        groups += [_step_group(step, run.tokens * model.hidden**2)] * len(alike)
    timed = time_operators(operators, device, parameters=parameters, without=without, queued=False).seconds
    return {group: float(timed[np.array(groups) == group].sum()) for group in GROUPS if group in groups}


def _step_group(step: Step, projection: int) -> str:
    operator = step.operator
    if operator.kind == "matmul":
        return "projection" if operator.flops == 2 * projection else "feed-forward"
    if operator.kind in ("softmax", "normalization"):
        return operator.kind
    if operator.kind == "batched_matmul" or step.name == "aten::copy_":
        return "attention"
    return "dropout" if step.name == "aten::native_dropout" else "elementwise"


def _layer_rows(layers: Sequence[MeasuredLayer], parameters: Parameters) -> list[ValidationRow]:
    """Return the shares of each layer's operators, with the fits of its device and without them."""
    rows = []
    fits = parameters.calibration(KernelCalibration).fits
    fitted = {device for _, device, dtype, _ in fits if dtype == "fp32"}
    errors: list[float] = []
    for layer in layers:
        total = sum(layer.seconds.values())
        for basis in ("fitted", "carried") if layer.device.name in fitted else ("carried",):
            without = (layer.device.name,) if basis == "carried" else ()
            ours = layer_seconds(layer.run, layer.device, parameters, without)
            for group in ours:
                measured, predicted = layer.seconds[group] / total, ours[group] / sum(ours.values())
                case = f"{group}, {layer.name}, {basis}"
                rows.append(_row(case, measured, predicted, layer.source))
                if basis == "carried" and measured >= _LEAST_SHARE:
                    errors.append(rows[-1].error)
    if errors:
        case = f"shares of {_LEAST_SHARE:.0%} and more, each device left out: mean"
        rows.append(summary_row(case, float(np.mean(errors)), _LIMIT))
    return rows


def _row(case: str, measured: float, ours: float, source: str) -> ValidationRow:
    return ValidationRow(case, measured, ours, abs(ours / measured - 1), source=source)


@dataclass(frozen=True)
class Throughput:
    """Measured throughput of pre-training.

    Parameters
    ----------
    framework, gpu, precision : str
        Framework, device and number format, as the table names them.
    phase : int
        Phase 1 of 128 tokens, or 2 of 512.
    job : TrainingJob
        The step.
    device : Device
        Device of every rank.
    measured : float
        Sequences a second.
    source : str
        File and row.
    """

    framework: str
    gpu: str
    precision: str
    phase: int
    job: workloads.TrainingJob
    device: Device
    measured: float
    source: str

    @property
    def skips_padding(self) -> bool:
        """Whether products of all tokens, padding included, would run faster than the device can."""
        job = self.job
        run = DecoderPass(job.micro_batch, job.length, training=True, size=job.element_bytes)
        blocks = [layer_block(job.model, run)] * job.model.layers + [head_block(job.model, run, shared=True)]
        steps = [step for block in blocks for step in (*block.forward, *block.backward)]
        flops = sum(step.operator.flops for step in steps if step.operator.kind in _PRODUCTS) / job.micro_batch
        rate = Machine.of(self.device, job.precision).flops_per_s * PRODUCT_SHARE
        return flops * self.measured / job.layout.devices > rate


def _throughput(where: str, row: Row) -> Throughput:
    names = ("phase", "sequence_tokens", "nodes_count", "gpus_count", "micro_batch_sequences", "grad_accum_steps")
    phase, length, nodes, devices, micro, passes = (measured_count(row, name) for name in names)
    precision, gpu = row["precision"] or "", (row["gpu"] or "").partition(" (")[0]
    if precision not in _FORMATS:
        raise InvalidInputError(f"precision {precision[:_SHOWN]!r}; there are {', '.join(_FORMATS)}")
    measured = measured_number(row, "throughput_sequences_per_s")
    layout = workloads.Layout(data=devices, node_devices=max(devices // nodes, 1))
    job = workloads.TrainingJob(workloads.load_transformers()[_MODEL], length, micro * passes * devices, micro, layout,
                                precision=_FORMATS[precision], optimizer="lamb")  # fmt: skip
    device = find_device(_GPUS.get(gpu, gpu))
    return Throughput(row["framework"] or "", row["gpu"] or "", precision, phase, job, device, measured, where)


@dataclass(frozen=True)
class _Ratio:
    """A ratio of throughput that is scored: what its sides have in common, and which of them is above the line.

    Parameters
    ----------
    name : str
        What differs between its sides.
    key : callable
        Takes a measurement, and returns what both sides have in common.
    side : callable
        Takes a measurement and its group, and returns whether it is above the line; None if it is on neither side.
    padded : bool
        Whether both sides have to compute the padding, too.
    """

    name: str
    key: Callable[[Throughput], tuple[object, ...]]
    side: Callable[[Throughput, Collection[Throughput]], bool | None]
    padded: bool = False


def _of_extreme_count(run: Throughput, group: Collection[Throughput]) -> bool | None:
    counts = [each.job.layout.devices for each in group]
    extreme = {max(counts): True, min(counts): False} if max(counts) > min(counts) else {}
    return extreme.get(run.job.layout.devices)


#: Mixed over full precision; phase 1 over phase 2; most devices over fewest.
_RATIOS = (
    _Ratio(
        "precision",
        lambda run: (run.framework, run.gpu, f"phase {run.phase}", f"{run.job.layout.devices} GPUs"),
        lambda run, _: run.job.element_bytes == 2,
    ),
    _Ratio(
        "phases",
        lambda run: (run.framework, run.gpu, run.precision),
        lambda run, _: run.phase == 1,
        padded=True,
    ),
    _Ratio(
        "devices",
        lambda run: (run.framework, run.gpu, f"phase {run.phase}", run.precision),
        _of_extreme_count,
    ),
)


def _throughput_rows(measured: Sequence[Throughput], options: SuiteOptions) -> tuple[list[ValidationRow], list[str]]:
    """Return ratios of throughput for each device, and a note on what is left out."""
    parameters, fit = options.parameters, workloads.load_training()
    rates = {}
    for run in followed(measured, options.progress("predicting steps"), lambda each: each.source):
        step = workloads.predict_steps([run.job], run.device, fit=fit, parameters=parameters)[0]
        rates[run] = (run.measured, run.job.global_batch / step.seconds)
    skipping = {(run.framework, run.phase) for run in measured if run.skips_padding}
    rows: list[ValidationRow] = []
    for ratio in _RATIOS:
        scored = [run for run in measured if not ratio.padded or (run.framework, run.phase) not in skipping]
        found = _ratio_rows(ratio, {run: rates[run] for run in scored})
        rows += found
        if found:
            error = float(np.median([row.error for row in found]))
            rows.append(summary_row(f"ratios of {ratio.name}: median", error, _LIMIT))
    notes = [
        f"{framework}, phase {phase}: products of all tokens would run faster than the device can, so it leaves out "
        "padding; the ratio of phases is not scored"
        for framework, phase in sorted(skipping)
    ]
    return rows, notes


def _ratio_rows(ratio: _Ratio, rates: Mapping[Throughput, tuple[float, float]]) -> list[ValidationRow]:
    """Return a row for each group that has both sides of a ratio: medians of their throughput for each device."""
    rows = []
    for key, group in grouped(rates, ratio.key).items():
        sides: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for run in group:
            if (side := ratio.side(run, group)) is not None:
                devices = run.job.layout.devices
                sides[side].append((rates[run][0] / devices, rates[run][1] / devices))
        if sides[True] and sides[False]:
            over, under = (np.median(np.array(sides[side]), axis=0) for side in (True, False))
            names = ", ".join(map(str, key))
            published, predicted = (over / under).tolist()
            rows.append(_row(f"{ratio.name}: {names}", published, predicted, group[0].source))
    return rows


def _score_layers(layers: Sequence[MeasuredLayer], options: SuiteOptions) -> SuiteResult:
    """Score the shares of operators."""
    rows = _layer_rows(layers, options.parameters)
    return SuiteResult(rows, {}, [_table("Shares of operators in the time of a layer", rows)])


def _score_throughput(measured: Sequence[Throughput], options: SuiteOptions) -> SuiteResult:
    """Score the ratios of throughput."""
    rows, notes = _throughput_rows(measured, options)
    heading = "Throughput of a device: mixed over full precision, phase 1 over 2, most devices over fewest"
    return SuiteResult(rows, {}, [_table(heading, rows)] if rows else [], notes=notes)


def _table(title: str, rows: Sequence[ValidationRow]) -> Table:
    columns = {
        "case~": "{row.case}",
        "measured": "{row.reference:.3f}",
        "ours": "{row.ours:.3f}",
        "err %": "{row.error:.1%}",
    }
    return table_of(title, columns, [{"row": row} for row in rows if row.reference is not None])


SUITE = suite_of_parts(
    "bert",
    __doc__,
    f"table of BERT's operators (columns {', '.join(_NODE_COLUMNS)}) or of its throughput "
    f"(columns {', '.join(_THROUGHPUT_COLUMNS)})",
    {
        "operators": TablePart(
            frozenset(_NODE_COLUMNS).issubset, lambda file, options: _read_layers(file), _score_layers
        ),
        "throughput": TablePart(
            frozenset(_THROUGHPUT_COLUMNS).issubset,
            lambda file, options: measured_rows(file, _THROUGHPUT_COLUMNS, _throughput),
            _score_throughput,
        ),
    },
)
