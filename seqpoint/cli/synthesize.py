"""The command `synthesize`: a predicted training job, as a step time and as a trace."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from profilers.devices.catalogue import find_device
from profilers.trace.steps import step_times
from profilers.trace.store import save_trace
from replay import workloads
from replay.costs.shipped import load_parameters
from seqpoint.cli.options import output_options, refuse_options
from seqpoint.cli.output import message, print_json, print_lines, print_table
from seqpoint.units import duration

#: Options that only a transformer has.
_OF_TRANSFORMERS = (
    *("models_", "layers", "hidden", "heads", "feedforward", "vocabulary", "length", "global_batch", "micro_batch"),
    *("tp", "sequence_parallel", "pp", "recompute", "precision", "optimizer", "calibration"),
)
F = TypeVar("F", bound=Callable[..., Any])
_POSITIVE = click.IntRange(1)


def _count(name: str, default: int, text: str) -> Callable[[F], F]:
    return click.option(name, type=_POSITIVE, default=default, show_default=True, help=text)


@click.command("synthesize")
@click.option(
    "--model",
    default="gpt",
    show_default=True,
    metavar="NAME",
    help="Name of the model: gpt, a model of the file, or dlrm, a recommendation model on --dp ranks.",
)
@click.option(
    "--models",
    "models_",
    metavar="FILE.toml",
    type=click.Path(),
    help="File of models to use instead of the shipped ones.",
)
@click.option("--layers", type=_POSITIVE, help="Number of layers.  [default: that of the model; of gpt, 24]")
@click.option("--hidden", type=_POSITIVE, help="Hidden size.  [default: that of the model; of gpt, 2048]")
@click.option("--heads", type=_POSITIVE, help="Number of attention heads.  [default: that of the model; of gpt, 16]")
@click.option(
    "--feedforward",
    type=_POSITIVE,
    help="Size of the feed-forward layer.  [default: that of the model; with --hidden, 4 times that]",
)
@click.option(
    "--vocabulary", type=_POSITIVE, help="Size of the vocabulary.  [default: that of the model; of gpt, 51200]"
)
@_count("--length", 1024, "Sequence length in tokens.")
@_count("--global-batch", 64, "Number of sequences in a step, over all replicas.")
@_count("--micro-batch", 4, "Number of sequences that pass a pipeline stage at a time.")
@_count("--tp", 1, "Number of tensor-parallel ranks.")
@click.option(
    "--sequence-parallel",
    is_flag=True,
    help="Share the tokens between tensor-parallel ranks: reduce-scatter and all-gather instead of all-reduce.",
)
@_count("--dp", 1, "Number of data-parallel replicas.")
@_count("--pp", 1, "Number of pipeline stages.")
@click.option(
    "--recompute", is_flag=True, help="Compute activations again in the backward pass instead of keeping them."
)
@click.option(
    "--precision",
    type=click.Choice(list(workloads.PRECISIONS)),
    default="fp16",
    show_default=True,
    help="Number format; of 16 bits, mixed precision with FP32 copies of the weights.",
)
@click.option(
    "--optimizer", type=click.Choice(list(workloads.OPTIMIZERS)), default="adam", show_default=True, help="Optimizer."
)
@click.option(
    "--device",
    default="A100-SXM4-80GB",
    show_default=True,
    metavar="NAME",
    help="Device of the catalogue; `seqpoint devices` lists the names.",
)
@_count("--node-devices", 8, "Number of devices in a node.")
@_count("--steps", 1, "Number of iterations in the trace.")
@click.option(
    "--calibration",
    metavar="FILE",
    type=click.Path(),
    help="Costs of host and optimizer instead of the shipped ones, as `seqpoint calibrate training` writes them.",
)
@click.option("-o", "--output", metavar="NAME.trace", type=click.Path(), help="Folder for the trace of a replica.")
@output_options
def command(model: str, models_: str | None, json_: bool, output: str | None, **options: Any) -> None:
    """Predict the time of a training step without running it, and write its trace.

    The job is that of Megatron-LM, or of BERT as PyTorch runs it, with tensor, pipeline (1F1B) and data parallelism.
    The trace has every pipeline stage and tensor-parallel rank, and replays like a recorded one. With --model dlrm it
    is DLRM, and one rank stands for all.

    \b
    seqpoint synthesize --hidden 4096 --layers 32 --heads 32 --tp 4 --pp 2 --recompute -o job.trace
    seqpoint synthesize --model gpt3_27 --tp 2 --dp 4 --global-batch 128 --device H100-SXM5-80GB --json
    seqpoint synthesize --model bert_large --length 128 --precision fp32 --optimizer lamb --device MI100 -o bert.trace
    seqpoint synthesize --model dlrm --dp 16 --device MI300X -o dlrm.trace
    """
    if model == "dlrm":
        refuse_options(_OF_TRANSFORMERS, "on the model dlrm")
        _dlrm(options, output, json_)
        return
    if not output:
        refuse_options(("steps",), "without --output, which writes the trace")
    if model == "gpt":
        refuse_options(("models_",), "on the model gpt; name a model of the file with --model")
    sizes = {name: options[name] for name in ("layers", "hidden", "heads", "feedforward", "vocabulary")}
    sizes_of_groups = (options[name] for name in ("tp", "dp", "pp", "node_devices", "sequence_parallel"))
    layout = workloads.Layout(*sizes_of_groups)
    job = workloads.TrainingJob(_model(model, models_, sizes), options["length"], options["global_batch"],
                      options["micro_batch"], layout, options["recompute"], options["precision"],
                      options["optimizer"])  # fmt: skip
    fit = workloads.read_training_fit(options["calibration"]) if options["calibration"] else workloads.load_training()
    device = find_device(options["device"])
    parameters = load_parameters()
    step = workloads.predict_steps([job], device, fit=fit, parameters=parameters)[0]
    if output:
        lengths = [job.length] * options["steps"]
        made = workloads.training_trace(job, device, fit=fit, parameters=parameters, lengths=lengths)
        save_trace(made, Path(output))
        message(f"wrote {output}")
    if json_:
        print_json(_content(step, device.name))
    else:
        _show(step, device.name)


def _dlrm(options: Mapping[str, Any], output: str | None, json_: bool) -> None:
    """Print the step time of a recommendation model, and write its trace."""
    parameters = load_parameters()
    cluster = workloads.nodes_of(options["dp"], options["node_devices"], options["device"])
    trace = workloads.dlrm_trace(workloads.Dlrm(), cluster, parameters=parameters, steps=options["steps"])
    if output:
        save_trace(trace, Path(output))
        message(f"wrote {output}")
    step_ns = float(step_times(trace).step_ns[-1])
    if json_:
        print_json({"device": cluster.device, "devices": cluster.ranks, "iteration_s": step_ns / 1e9})
    else:
        print_lines(f"{duration(step_ns)} a step on {cluster.ranks} {cluster.device}")


def _model(name: str, path: str | None, sizes: dict[str, int | None]) -> workloads.Transformer:
    gpt = workloads.Transformer("gpt", "megatron", 24, 2048, 16, 8192, 51200)
    base = gpt if name == "gpt" else workloads.find_transformer(name, workloads.load_transformers(path))
    chosen: dict[str, Any] = {size: value for size, value in sizes.items() if value}
    if "hidden" in chosen:
        chosen = {"feedforward": 4 * chosen["hidden"]} | chosen
    style = base.style if base.style in workloads.TRAINED_STYLES else "megatron"
    return replace(base, style=style, experts=1, source="", **chosen)


def _parts(step: workloads.PredictedStep) -> dict[str, float]:
    parts = step.parts
    return {
        "compute": parts.compute_s,
        "tensor_parallel": parts.tensor_s,
        "host_bound": parts.host_s,
        "bubble": parts.bubble_s,
        "data_parallel": parts.data_s,
        "optimizer": parts.optimizer_s,
    }


def _content(step: workloads.PredictedStep, device: str) -> dict[str, object]:
    job, model = step.job, step.job.model
    return {
        "device": device,
        "devices": job.layout.devices,
        "model": {name: getattr(model, name) for name in ("layers", "hidden", "heads", "feedforward", "vocabulary")},
        "precision": job.precision,
        "optimizer": job.optimizer,
        "micro_batches": job.micro_batches,
        "iteration_s": step.seconds,
        "low_s": step.low_s,
        "high_s": step.high_s,
        "basis": step.basis,
        "parts_s": _parts(step),
        "shares": {name: value / step.seconds for name, value in _parts(step).items()},
    }


def _show(step: workloads.PredictedStep, device: str) -> None:
    took, low, high = (duration(1e9 * value) for value in (step.seconds, step.low_s, step.high_s))
    print_table(
        f"{took} a step ({low} - {high}, {step.basis}) on {step.job.layout.devices} {device}",
        ("part~", "time", "share %"),
        [
            (name.replace("_", " "), duration(1e9 * value), f"{100 * value / step.seconds:.1f}")
            for name, value in _parts(step).items()
        ],
    )
