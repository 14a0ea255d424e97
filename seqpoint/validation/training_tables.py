"""Read tables of measured training steps: MLPerf Training, SimuMax on B200, BERT, MPT with FSDP, Megatron-LM on A100.

Each table becomes `MeasuredStep`s with their training job and their device. Runs of one configuration are one step,
with the median of their times. Rows whose job is not known are counted, with the reason. Ratios of two steps show how
far a prediction is off where only one thing changes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType

import numpy as np

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.calibration.tables import Row, measured_count, measured_number, measured_rows, note_row
from replay.workloads import Layout, MeasuredStep, TrainingJob, Transformer, find_transformer, load_transformers
from replay.workloads.training_fits import COLUMNS, read_steps
from seqpoint.validation.suites import TimedScore, grouped, layout_of

_MLPERF = (
    "round", "benchmark", "submitter", "system", "accelerator", "nodes_count", "accelerators_count", "tp_ranks",
    "pp_ranks", "cp_ranks", "ep_ranks", "dp_ranks", "vpp_chunks", "micro_batch_sequences", "global_batch_sequences",
    "grad_accum_steps", "sequence_tokens", "step_time_median_s", "config_file",
)  # fmt: skip
_SIMUMAX = (
    "model", "accelerator", "accelerators_count", "layers_count", "sequence_tokens", "micro_batch_sequences",
    "micro_batches_per_step_count", "tp_ranks", "pp_ranks", "cp_ranks", "ep_ranks", "dp_ranks", "step_time_real_ms",
)  # fmt: skip
_BERT = (
    "framework", "gpu", "sequence_tokens", "nodes_count", "gpus_count", "precision", "micro_batch_sequences",
    "grad_accum_steps", "step_time_s",
)  # fmt: skip
_MPT = (
    "model", "sequence_length_tokens", "gpus_count", "device", "precision", "activation_checkpointing",
    "micro_batch_sequences", "gradient_accumulation_count", "tokens_per_second_per_gpu",
)  # fmt: skip
_DIGITS = 7
#: A measured step with its prediction.
StepScore = TimedScore[MeasuredStep]


@dataclass(frozen=True)
class MeasuredSteps:
    """Steps of a table, and rows that make none.

    Parameters
    ----------
    kind : str
        Kind of the table, as `table_kind` returns it.
    steps : tuple of MeasuredStep
        One for each configuration.
    rows : int
        Rows of the table.
    skipped : mapping of str to int
        Rows without a step, by reason.
    """

    kind: str
    steps: tuple[MeasuredStep, ...]
    rows: int
    skipped: Mapping[str, int] = field(default_factory=dict)


class _SkippedRowError(Exception):
    """A row whose job is not known; the text says why."""


def _is_text(row: Row, name: str) -> bool:
    return bool((row[name] or "").strip())


def _count(row: Row, name: str) -> int:
    """Return a whole number, which the table may write as ``8.0``."""
    text = (row[name] or "").strip().removesuffix(".0")
    return measured_count({name: text}, name, _DIGITS)


#: Devices that are connected over NVLink in a rack (GB200 and GB300 NVL72); larger jobs use 64 of them.
_RACK, _RACK_OF_MANY = 72, 64


#: Devices that the catalogue names by their form, and the table does not.
_SXM = MappingProxyType({"V100-32GB": "V100-SXM2-32GB", "V100-16GB": "V100-SXM2-16GB"})


def _device(row: Row, name: str) -> str:
    text = (row[name] or "").strip()
    system = text.partition(" (")[0]  # as in `V100-32GB (DGX-2)`
    try:
        return find_device(_SXM.get(system, text)).name
    except NotFoundError as error:
        raise _SkippedRowError(f"no device {text[:40]!r} in the catalogue") from error


def _node_devices(device: str, devices: int, nodes: int) -> int:
    if device.startswith("GB"):
        return devices if devices <= _RACK else _RACK_OF_MANY
    return max(devices // nodes, 1)


#: Sequences that BERT packs in one of 512 tokens, on average (arXiv 2107.02027: half of the tokens are padding).
_PACKED = 2
#: Model of each benchmark of MLPerf Training, and the rank of its adapters (0: all weights are trained).
_BENCHMARKS = MappingProxyType(
    {
        "bert": ("bert_large", 0),
        "gpt3": ("gpt3_175b", 0),
        "llama2_70b_lora": ("llama2_70b", 16),
        "llama31_405b": ("llama31_405b", 0),
        "llama31_8b": ("llama31_8b", 0),
    }
)


def _mlperf_step(where: str, row: Row) -> MeasuredStep:
    benchmark, device = (row["benchmark"] or "").strip(), _device(row, "accelerator")
    if benchmark not in _BENCHMARKS:
        raise _SkippedRowError(f"benchmark {benchmark[:40]!r} is no transformer that is known here")
    if not _is_text(row, "step_time_median_s"):
        raise _SkippedRowError("no step time")
    layout, micro = _mlperf_layout(row, device)
    name, adapters = _BENCHMARKS[benchmark]
    packed = _PACKED if benchmark == "bert" else 1
    micro *= packed
    batch = micro * layout.data * _count(row, "grad_accum_steps")
    if batch != _count(row, "global_batch_sequences"):
        raise _SkippedRowError("layout and passes contradict the batch")
    job = TrainingJob(
        find_transformer(name, load_transformers()),
        _count(row, "sequence_tokens") // packed,
        batch,
        micro,
        layout,
        precision=_mlperf_precision(row, device),
        optimizer="lamb" if benchmark == "bert" else "adam",
        attention="flash",
        sharding=1,
        overlap_gradients=benchmark != "bert",
        adapter_rank=adapters,
        cuda_graphs=True,
    )
    system = f"{(row['submitter'] or '').strip()} {(row['system'] or '').strip()}"
    run = f"{benchmark} {(row['round'] or '').strip()}"
    return MeasuredStep(job, measured_number(row, "step_time_median_s"), where, device, system, run)


def _mlperf_layout(row: Row, device: str) -> tuple[Layout, int]:
    """Return the layout and the micro-batch of a row.

    Without a layout, it is inferred where only one is possible: a run whose sequences are as many as its devices times
    its passes, in micro-batches of one, as every run of Llama-2-70B LoRA that logs them, splits no model.
    """
    devices, nodes = _count(row, "accelerators_count"), _count(row, "nodes_count")
    node = _node_devices(device, devices, nodes)
    if not _is_text(row, "tp_ranks"):
        sequences = devices * _count(row, "grad_accum_steps")
        if row["benchmark"] == "llama2_70b_lora" and sequences == _count(row, "global_batch_sequences"):
            return Layout(data=devices, node_devices=node), 1
        raise _SkippedRowError("no layout, and more than one is possible")
    ranks = {part: _count(row, f"{part}_ranks") for part in ("tp", "pp", "cp", "ep", "dp")}
    chunks = _count(row, "vpp_chunks") if _is_text(row, "vpp_chunks") else 1
    layout = Layout(
        ranks["tp"], ranks["dp"], ranks["pp"], node, ranks["tp"] > 1 and row["benchmark"] != "bert", ranks["cp"],
        ranks["ep"], "interleaved" if chunks > 1 else "1f1b", chunks, row["benchmark"] == "llama31_405b",
    )  # fmt: skip
    if layout.devices != devices:
        raise InvalidInputError(f"the layout is of {layout.devices} devices, not the {devices} of accelerators_count")
    return layout, _count(row, "micro_batch_sequences")


def _mlperf_precision(row: Row, device: str) -> str:
    """Return the precision: what the name of the configuration says, or what the round and the device allow.

    Submissions on devices with FP8 train in it; NVFP4 came with round 5.1 on Blackwell.
    """
    if device.startswith("A100"):
        return "fp16"
    config = row["config_file"] or ""
    if "fp4" in config:
        return "nvfp4"
    if not config.strip() and row["round"] == "v5.1" and "B" in device.split("-")[0]:
        raise _SkippedRowError("no configuration that says whether FP8 or NVFP4 was used")
    return "fp8"


#: Models of SimuMax's runs.
_SIMUMAX_MODELS = MappingProxyType(
    {
        "llama3-70b": "llama31_70b",
        "llama3-405b": "llama31_405b",
        "deepseekv2": "deepseek_v2",
        "deepseekv3": "deepseek_v3",
    }
)


def _simumax_step(where: str, row: Row) -> MeasuredStep:
    name = (row["model"] or "").strip()
    if name not in _SIMUMAX_MODELS:
        raise _SkippedRowError(f"model {name[:40]!r} is none that is known here")
    model = find_transformer(_SIMUMAX_MODELS[name], load_transformers())
    layers = _count(row, "layers_count")
    # Its runs have one dense layer of few, and 16 heads of keys in the 405B.
    kv_heads = 16 if name == "llama3-405b" else model.kv_heads
    model = replace(model, layers=layers, dense_layers=min(model.dense_layers, 1), kv_heads=kv_heads)
    devices, micro = _count(row, "accelerators_count"), _count(row, "micro_batch_sequences")
    tensor, pipeline, context, expert, data = (_count(row, f"{part}_ranks") for part in ("tp", "pp", "cp", "ep", "dp"))
    layout = Layout(tensor, data, pipeline, devices, tensor > 1, context, expert)
    batch = micro * data * _count(row, "micro_batches_per_step_count")
    job = TrainingJob(
        model, _count(row, "sequence_tokens"), batch, micro, layout, precision="bf16", attention="flash", sharding=1
    )
    system = f"SimuMax {name}"
    return MeasuredStep(
        job, measured_number(row, "step_time_real_ms") / 1e3, where, _device(row, "accelerator"), system, name
    )


_BERT_PRECISIONS = MappingProxyType({"FP16-mixed": "fp16", "TF32": "tf32", "FP32": "fp32"})
#: Frameworks whose examples read sequences in bins of 64 tokens (NVIDIA LDDL), so that little is padded.
_BINNED = ("PyTorch", "PaddlePaddle")
#: Tokens of a sequence in phase 1 and 2, and in bins: half of the 512 are padding (arXiv 2107.02027), as half a bin is.
_SHORT, _LONG, _BINNED_TOKENS = 128, 512, 512 // 2 + 64 // 2


def _bert_step(where: str, row: Row) -> MeasuredStep:
    device, framework = _device(row, "gpu"), (row["framework"] or "").strip()
    devices, precision = _count(row, "gpus_count"), (row["precision"] or "").strip()
    if precision not in _BERT_PRECISIONS:
        raise _SkippedRowError(f"precision {precision[:40]!r} is none that is known here")
    micro, tokens = _count(row, "micro_batch_sequences"), _count(row, "sequence_tokens")
    job = TrainingJob(
        find_transformer("bert_large", load_transformers()),
        _BINNED_TOKENS if framework in _BINNED and tokens == _LONG else tokens,
        micro * devices * _count(row, "grad_accum_steps"),
        micro,
        Layout(data=devices, node_devices=_node_devices(device, devices, _count(row, "nodes_count"))),
        precision=_BERT_PRECISIONS[precision],
        optimizer="lamb",
    )
    system = f"{framework} {(row['gpu'] or '').strip()}"
    return MeasuredStep(job, measured_number(row, "step_time_s"), where, device, system, framework)


#: Hidden size, heads and layers of each model of MosaicML's llm-foundry, and their vocabulary.
_MPT_MODELS = MappingProxyType(
    {
        "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24),
        "3b": (2560, 20, 32), "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
    }
)  # fmt: skip
_MPT_VOCABULARY = 50368


def _mpt_step(where: str, row: Row) -> MeasuredStep:
    name, precision = (row["model"] or "").strip(), (row["precision"] or "").strip()
    if name not in _MPT_MODELS or precision != "bf16":
        raise _SkippedRowError(f"model {name[:40]!r} in {precision[:40]!r} is none that is known here")
    hidden, heads, layers = _MPT_MODELS[name]
    devices, micro = _count(row, "gpus_count"), _count(row, "micro_batch_sequences")
    passes, tokens = _count(row, "gradient_accumulation_count"), _count(row, "sequence_length_tokens")
    job = TrainingJob(
        Transformer(f"mpt_{name}", "megatron", layers, hidden, heads, 4 * hidden, _MPT_VOCABULARY),
        tokens,
        micro * passes * devices,
        micro,
        Layout(data=devices),
        recompute=(row["activation_checkpointing"] or "").strip() == "True",
        precision=precision,
        attention="flash1",  # Triton's kernel of 2023
        sharding=3,
    )
    seconds = micro * passes * tokens / measured_number(row, "tokens_per_second_per_gpu")
    device = _device(row, "device")
    return MeasuredStep(job, seconds, where, device, f"MosaicML {device}", f"MPT of {tokens} tokens")


#: Columns of each table, and the function that makes a step of a row.
_TABLES: Mapping[str, tuple[Sequence[str], Callable[[str, Row], MeasuredStep]]] = MappingProxyType(
    {
        "MLPerf": (_MLPERF, _mlperf_step),
        "SimuMax": (_SIMUMAX, _simumax_step),
        "BERT": (_BERT, _bert_step),
        "MPT": (_MPT, _mpt_step),
    }
)


def table_kind(columns: Iterable[str]) -> str:
    """Return the kind of a table of steps by its columns; empty if there is no such table.

    Examples
    --------
    >>> table_kind(["# GPUs"])
    ''
    """
    return layout_of(columns, {"Megatron": COLUMNS, **{kind: needed for kind, (needed, _) in _TABLES.items()}})


def table_needs(kind: str) -> tuple[str, ...]:
    """Return the columns that a kind of table needs."""
    return tuple(_TABLES[kind][0])


def step_of_row(kind: str, where: str, row: Row) -> MeasuredStep | str:
    """Return the step of a row, or the reason why there is none.

    Parameters
    ----------
    kind : str
        A result of `table_kind` other than Megatron-LM's.
    where : str
        File and row.
    row : mapping
        Row of the table.
    """
    try:
        return _TABLES[kind][1](where, row)
    except (_SkippedRowError, InvalidInputError) as reason:
        return str(reason)


def read_table(path: Path, kind: str, node_devices: int = 8) -> MeasuredSteps:
    """Read a table of measured steps.

    Parameters
    ----------
    path : Path
        CSV file.
    kind : str
        A result of `table_kind`; an empty one is read as Megatron-LM's.
    node_devices : int
        Devices of a node, for a table that does not say.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or a row is refused; the message names it.
    """
    if kind not in _TABLES:
        steps = read_steps(path, node_devices)
        return MeasuredSteps("Megatron", tuple(steps), len(steps))
    columns, step_of = _TABLES[kind]
    skipped: Counter[str] = Counter()

    def step(where: str, row: Row) -> MeasuredStep | None:
        try:
            return step_of(where, row)
        except _SkippedRowError as reason:
            skipped[str(reason)] += 1
            note_row(where, reason)
            return None

    rows = measured_rows(path, columns, step)
    known = (each for each in rows if each is not None)
    groups = grouped(known, lambda each: (each.job, each.device, each.system, each.run))
    merged = (replace(some[0], seconds=float(np.median([one.seconds for one in some]))) for some in groups.values())
    return MeasuredSteps(kind, tuple(merged), len(rows), dict(skipped))


@dataclass(frozen=True)
class RatioScore:
    """Speed of one step over that of another, measured and predicted.

    Parameters
    ----------
    kind : str
        What differs between the two.
    case : str
        The two steps.
    measured, predicted : float
        Sequences per second of the second over those of the first.
    fitted : bool
        Whether both steps were fitted.
    """

    kind: str
    case: str
    measured: float
    predicted: float
    fitted: bool = False

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured``."""
        return abs(self.predicted / self.measured - 1)


def _ratio(kind: str, first: StepScore, second: StepScore) -> RatioScore:
    batch = second.measured.job.global_batch / first.measured.job.global_batch
    return RatioScore(
        kind,
        f"{first.case} / {second.case}",
        batch * first.measured.seconds / second.measured.seconds,
        batch * first.seconds / second.seconds,
        first.fitted and second.fitted,
    )


def scale_ratios(scores: Sequence[StepScore]) -> list[RatioScore]:
    """Return the ratios of all pairs of one run, owner, device and precision on different numbers of devices.

    Parameters
    ----------
    scores : sequence of StepScore
        Steps of MLPerf Training, whose `run` is benchmark and round, and whose `system` begins with its owner.
    """
    return [
        _ratio("scale", *sorted(pair, key=_devices))
        for group in grouped(scores, _run_of_owner).values()
        for pair in combinations(group, 2)
        if _devices(pair[0]) != _devices(pair[1])
    ]


def _run_of_owner(score: StepScore) -> tuple[str, ...]:
    step = score.measured
    return step.run, step.system.split(" ")[0], step.device, step.job.precision


def _devices(score: StepScore) -> int:
    return score.measured.job.layout.devices


def throughput_ratios(scores: Sequence[StepScore]) -> list[RatioScore]:
    """Return the ratios of all pairs of one system that differ in phase, precision or number of devices alone.

    Pairs of two phases may be on other numbers of devices too, since few were measured on as many.

    Parameters
    ----------
    scores : sequence of StepScore
        Steps of BERT's pre-training: phase 1 has sequences of 128 tokens.
    """
    ratios = []
    for first, second in combinations(scores, 2):
        if first.measured.system != second.measured.system:
            continue
        sides = [
            {"phase": score.measured.job.length > _SHORT, "precision": score.measured.job.precision,
             "devices": _devices(score)}
            for score in (first, second)
        ]  # fmt: skip
        differs = [name for name in sides[0] if sides[0][name] != sides[1][name]]
        if differs in (["phase"], ["precision"], ["devices"], ["phase", "devices"]):
            ratios.append(_ratio(differs[0], first, second))
    return ratios
