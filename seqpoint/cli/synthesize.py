"""The command `synthesize`: a predicted training job, as a step time and as a trace."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from profilers.devices.catalogue import Device, find_device
from profilers.trace.steps import step_times
from profilers.trace.store import save_trace
from replay import workloads
from replay.costs.shipped import load_parameters
from seqpoint.cli.options import output_option, output_options, price_option, refuse_options
from seqpoint.cli.output import (
    message,
    print_json,
    print_lines,
    print_table,
    working,
)
from seqpoint.units import duration, tokens_per_dollar

#: Sizes of a job by the name of their option.
_SIZES: Mapping[str, str] = {
    name: name
    for name in (
        *("layers", "hidden", "heads", "feedforward", "vocabulary", "kv_heads", "experts", "experts_per_token"),
        *("length", "global_batch", "micro_batch", "sequence_parallel", "schedule", "chunks", "recompute"),
        *("selective_recompute", "precision", "optimizer", "attention", "sharding", "overlap_gradients"),
        *("offload", "cuda_graphs", "node_devices", "node_adapters"),
    )
} | {"tp": "tensor", "dp": "data", "pp": "pipeline", "cp": "context", "ep": "expert"}
#: Options that only a transformer has.
_OF_TRANSFORMERS = (
    *(set(_SIZES) - {"dp", "node_devices"}),
    *("job_", "models_", "phase", "generated", "calibration", "prices"),
)
#: Options of training that inference has no use for.
_OF_TRAINING = (
    *("micro_batch", "pp", "cp", "sequence_parallel", "schedule", "chunks", "recompute", "optimizer", "attention"),
    "selective_recompute",
    *("sharding", "overlap_gradients", "offload", "cuda_graphs", "calibration", "steps", "job_", "prices"),
)
F = TypeVar("F", bound=Callable[..., Any])
_POSITIVE = click.IntRange(1)
#: Most pipeline stages whose memory is printed: the first and the last ones.
_STAGES = 16


def _count(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=_POSITIVE, help=text)


def _choice(name: str, known: Iterable[object], text: str) -> Callable[[F], F]:
    return click.option(name, type=click.Choice([str(each) for each in known]), help=text)


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
@click.option(
    "--job",
    "job_",
    metavar="FILE.toml",
    type=click.Path(),
    help="File with a table [job] of sizes; options given besides replace them.",
)
@_count("--layers", "Number of layers.  [default: that of the model; of gpt, 24]")
@_count("--hidden", "Hidden size.  [default: that of the model; of gpt, 2048]")
@_count("--heads", "Number of attention heads.  [default: that of the model; of gpt, 16]")
@_count("--kv-heads", "Number of heads of keys and values.  [default: that of the model; of gpt, --heads]")
@_count("--feedforward", "Size of the feed-forward layer.  [default: that of the model; with --hidden, 4 times that]")
@_count("--vocabulary", "Size of the vocabulary.  [default: that of the model; of gpt, 51200]")
@_count("--experts", "Number of experts of a layer.  [default: that of the model; of gpt, 1]")
@_count("--experts-per-token", "Number of experts that a token goes to.  [default: that of the model; of gpt, 1]")
@_count("--length", "Sequence length in tokens; with --phase, of a prompt.  [default: 1024]")
@_count("--global-batch", "Number of sequences in a step, over all replicas; with --phase, of a rank.  [default: 64]")
@_count("--micro-batch", "Number of sequences that pass a pipeline stage at a time.  [default: 4]")
@_count("--tp", "Number of tensor-parallel ranks.  [default: 1]")
@click.option(
    "--sequence-parallel",
    is_flag=True,
    help="Share the tokens between tensor-parallel ranks: reduce-scatter and all-gather instead of all-reduce.",
)
@_count("--cp", "Number of context-parallel ranks, which share the tokens of a sequence.  [default: 1]")
@_count("--dp", "Number of data-parallel replicas.  [default: 1]")
@_count("--ep", "Number of ranks that share the experts, among replicas and --cp.  [default: 1]")
@_count("--pp", "Number of pipeline stages.  [default: 1]")
@_choice("--schedule", workloads.SCHEDULES, "Order of the micro-batches in a stage.  [default: 1f1b]")
@_count("--chunks", "Number of chunks of layers in a stage, of --schedule interleaved.  [default: 1]")
@click.option(
    "--recompute", is_flag=True, help="Compute activations again in the backward pass instead of keeping them."
)
@click.option("--selective-recompute", is_flag=True, help="Compute attention's scores alone again.")
@_choice(
    "--precision",
    workloads.PRECISIONS,
    "Number format; of 16 bits, mixed precision with FP32 copies of the weights.  [default: fp16; with --phase, bf16]",
)
@_choice("--optimizer", workloads.OPTIMIZERS, "Optimizer.  [default: adam]")
@_choice(
    "--attention",
    workloads.ATTENTIONS,
    "Attention: operator by operator, in one kernel, or in one of 2023 and before.  [default: plain]",
)
@_choice(
    "--sharding",
    workloads.SHARDINGS,
    "Stage of ZeRO: replicas share nothing, the optimizer, gradients too, weights too.  [default: 0]",
)
@click.option("--overlap-gradients", is_flag=True, help="Exchange gradients and weights of replicas beside kernels.")
@click.option("--offload", is_flag=True, help="Keep the optimizer's states on the host, whose CPUs update them.")
@click.option("--cuda-graphs", is_flag=True, help="Hold the calls of a micro-batch in CUDA graphs: no kernel waits.")
@_choice("--phase", workloads.PHASES, "A step of inference: all prompts, or the next token of each sequence.")
@click.option(
    "--generated", type=click.IntRange(0), help="Number of tokens generated before, of --phase decode.  [default: 0]"
)
@click.option(
    "--device",
    default="A100-SXM4-80GB",
    show_default=True,
    metavar="NAME",
    help="Device of the catalogue; `seqpoint devices` lists the names.",
)
@_count("--node-devices", "Number of devices in a node.  [default: 8]")
@_count("--node-adapters", "Number of network adapters in a node.  [default: those of the catalogue]")
@_count("--steps", "Number of iterations in the trace.  [default: 1]")
@click.option(
    "--calibration",
    metavar="FILE",
    type=click.Path(),
    help="Costs of host and optimizer instead of the shipped ones, as `seqpoint calibrate training` writes them.",
)
@price_option
@output_option("NAME.trace", "Folder for the trace of a replica.", required=False)
@output_options
def command(model: str, models_: str | None, json_: bool, output: str | None, **options: Any) -> None:
    """Predict the time of a training step without running it, and write its trace.

    The job is that of Megatron-LM, of models like Llama and DeepSeek, or of BERT as PyTorch runs it, with tensor,
    pipeline, data, context and expert parallelism. The trace has every pipeline stage and tensor-parallel rank, and
    replays like a recorded one. With --phase it is a step of inference. With --model dlrm it is DLRM, and one rank
    stands for all.

    \b
    seqpoint synthesize --hidden 4096 --layers 32 --heads 32 --tp 4 --pp 2 --recompute -o job.trace
    seqpoint synthesize --model gpt3_27 --tp 2 --dp 4 --global-batch 128 --device H100-SXM5-80GB --json
    seqpoint synthesize --model bert_large --length 128 --precision fp32 --optimizer lamb --device MI100 -o bert.trace
    seqpoint synthesize --model llama31_8b --tp 2 --dp 4 --sharding 1 --attention flash --precision bf16 --device H100
    seqpoint synthesize --model llama2_70b --tp 8 --phase decode --global-batch 16 --device H100
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
    if options["job_"]:
        refuse_options(("model", "models_"), "with --job, whose table [job] names the model")
    device, sizes = find_device(options["device"]), _sizes(model, options)
    models = workloads.load_transformers(models_)
    if options["phase"]:
        refuse_options(_OF_TRAINING, "in a step of inference")
        _inference(sizes, models, options, output, json_)
        return
    refuse_options(("generated",), "without --phase decode")
    if others := options["prices"].keys() - {device.name}:
        raise click.UsageError(f"--price {min(others)}: the job is on {device.name}")
    job = workloads.training_job(sizes, models)
    path = options["calibration"]
    fit = workloads.read_training_fit(path) if path else workloads.load_training()
    parameters = load_parameters()
    step = workloads.predict_steps([job], device, fit=fit, parameters=parameters)[0]
    if output:
        _write(job, workloads.JobTimer(device, parameters), fit, options["steps"] or 1, output)
    if json_:
        content = _content(step, device.name) | _memory(job, device)
        print_json(content | _energy(step) | _money(step, device, options["prices"]))
    else:
        _show(step, device, options["prices"])


def _write(
    job: workloads.TrainingJob, timer: workloads.JobTimer, fit: workloads.TrainingFit, steps: int, output: str
) -> None:
    """Write the trace of a job, and say on stderr how large it gets."""
    layout, works = job.layout, steps * workloads.count_works(job, timer)
    message(f"writing about {works:,} kernels and collectives of {layout.tensor * layout.pipeline} ranks")
    if works > _MANY:
        message("note: for what-ifs on a job of this size, `seqpoint scaling` and `seqpoint sweep` are much faster")
    with working("writing the trace"):
        program = workloads.training_program(job, timer, fit.costs_of(job, timer.device), lengths=[job.length] * steps)
        save_trace(workloads.write_trace(program, timer.device), Path(output))
    message(f"wrote {output}")


#: Kernels and collectives of a trace that takes a minute to project.
_MANY = 200_000


def _sizes(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat table of a job: that of a file, and what options give."""
    given = {size: options[name] for name, size in _SIZES.items() if options[name] not in (None, False)}
    if "sharding" in given:
        given["sharding"] = int(given["sharding"])
    if not options["job_"]:
        return given if model == "gpt" else {"model": model} | given
    table = workloads.job_sizes(workloads.read_job(options["job_"]))
    if "hidden" in given:
        del table["feedforward"]
    return table | given


def _inference(
    sizes: dict[str, Any],
    models: Mapping[str, workloads.Transformer],
    options: Mapping[str, Any],
    output: str | None,
    json_: bool,
) -> None:
    """Print the time of a step of inference, and write its trace."""
    ranks = sizes.get("expert", 1)
    alone = {"global_batch": ranks, "micro_batch": 1, "data": ranks, "precision": "bf16", "length": 1024}
    trained = workloads.training_job(alone | sizes | {name: alone[name] for name in ("global_batch", "data")}, models)
    job = workloads.InferenceJob(
        trained.model, options["phase"], sizes.get("global_batch", 64), trained.length, options["generated"] or 0,
        trained.layout, trained.precision,
    )  # fmt: skip
    device, parameters = find_device(options["device"]), load_parameters()
    parts = workloads.inference_parts(job, device, parameters=parameters)
    seconds = {name: count * sum(each for _, each in steps) for name, steps, count in parts}
    if output:
        save_trace(workloads.inference_trace(job, device, parameters=parameters), Path(output))
        message(f"wrote {output}")
    total = sum(seconds.values())
    if json_:
        ranks = job.layout.devices
        print_json({"device": device.name, "devices": ranks, "phase": job.phase, "iteration_s": total,
                    "parts_s": seconds})  # fmt: skip
        return
    print_table(
        f"{duration(1e9 * total)} a {job.phase} of {job.sequences} sequences on {job.layout.devices} {device.name}",
        ("part~", "time", "share %"),
        [(name, duration(1e9 * each), f"{100 * each / total:.1f}") for name, each in seconds.items()],
    )


def _dlrm(options: Mapping[str, Any], output: str | None, json_: bool) -> None:
    """Print the step time of a recommendation model, and write its trace."""
    parameters = load_parameters()
    cluster = workloads.nodes_of(options["dp"] or 1, options["node_devices"] or 8, options["device"])
    trace = workloads.dlrm_trace(workloads.Dlrm(), cluster, parameters=parameters, steps=options["steps"] or 1)
    if output:
        save_trace(trace, Path(output))
        message(f"wrote {output}")
    step_ns = float(step_times(trace).step_ns[-1])
    if json_:
        print_json({"device": cluster.device, "devices": cluster.ranks, "iteration_s": step_ns / 1e9})
    else:
        print_lines(f"{duration(step_ns)} a step on {cluster.ranks} {cluster.device}")


def _parts(step: workloads.PredictedStep) -> dict[str, float]:
    parts = step.parts
    return {
        "compute": parts.compute_s,
        "tensor_parallel": parts.tensor_s,
        **({"context_parallel": parts.context_s} if step.job.layout.context > 1 else {}),
        **({"expert_parallel": parts.expert_s} if step.job.layout.expert > 1 else {}),
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
        "tokens_per_gpu_s": _tokens_per_gpu_s(step),
        "parts_s": _parts(step),
        "shares": {name: value / step.seconds for name, value in _parts(step).items()},
    }


def _energy(step: workloads.PredictedStep) -> dict[str, float]:
    """Return the mean power of a device, the joules of a step on all, and tokens per J; nothing if it is unknown."""
    if step.watts is None:
        return {}
    joules = step.watts * step.seconds * step.job.layout.devices
    return {"watts": step.watts, "step_joules": joules, "tokens_per_joule": _tokens_per_gpu_s(step) / step.watts}


def _money(step: workloads.PredictedStep, device: Device, prices: Mapping[str, float]) -> dict[str, float]:
    """Return US dollars of a step and tokens per $, if the device has a price."""
    if not (price := prices.get(device.name)):
        return {}
    dollars = step.seconds * step.job.layout.devices * price / 3600
    return {"step_dollars": dollars, "tokens_per_dollar": tokens_per_dollar(_tokens_per_gpu_s(step), price)}


def _show(step: workloads.PredictedStep, device: Device, prices: Mapping[str, float]) -> None:
    job, ranks = step.job, step.job.layout.devices
    memory, took = workloads.job_memory(job), duration(1e9 * step.seconds)
    low, high = (duration(1e9 * value) for value in (step.low_s, step.high_s))
    if "memory_gb" in device.figures:
        fit, (least, most) = workloads.memory_fit(memory, device), (each / 1e9 for each in memory.interval)
        usable = f"usable memory of {device.name}: {workloads.usable_bytes(device) / 1e9:.1f} GB"
        needed = f"{memory.reserved / 1e9:.1f} GB ({least:.1f} - {most:.1f})"
        print_lines(f"{fit}: a rank needs {needed} with {job.attention} attention, {usable}")
        if fit != workloads.FITS[0]:
            print_lines(_what_fits(job, device))
        took = f"if it did fit, {took}" if fit == workloads.FITS[2] else took
    print_lines(
        f"{took} a step ({low} - {high}, {step.basis}) on {ranks} {device.name}, "
        f"{_tokens_per_gpu_s(step):,.0f} tokens/s per GPU"
    )
    if energy := _energy(step):
        rate = f"{energy['step_joules']:,.4g} J a step, {energy['tokens_per_joule']:,.3g} tokens per J"
        print_lines(f"about {energy['watts']:.0f} W a GPU: {rate}")
    if money := _money(step, device, prices):
        price = f"${prices[device.name]:g} an hour of a GPU"
        print_lines(f"at {price}: ${money['step_dollars']:,.4g} a step, {money['tokens_per_dollar']:,.0f} tokens per $")
    print_table(
        "Parts of the step",
        ("part~", "time", "share %"),
        [
            (name.replace("_", " "), duration(1e9 * value), f"{100 * value / step.seconds:.1f}")
            for name, value in _parts(step).items()
        ],
    )
    _show_memory(job)


def _tokens_per_gpu_s(step: workloads.PredictedStep) -> float:
    return step.job.global_batch * step.job.length / step.seconds / step.job.layout.devices


#: Options of the changes that `fitting_changes` tries.
_CHANGES: Mapping[str, str] = {
    "attention": "--attention {}",
    "recompute": "--recompute",
    "sharding": "--sharding {}",
    "tensor": "--tp {}",
}


def _what_fits(job: workloads.TrainingJob, device: Device) -> str:
    """Return a sentence on the changes that make a job fit, each alone."""
    more = {"tensor": lambda ranks: f" on {job.layout.devices // job.layout.tensor * ranks} GPUs"}
    changes = [
        f"{_CHANGES[key].format(value)}{more.get(key, lambda _: '')(value)} ({memory.reserved / 1e9:.1f} GB)"
        for key, value, memory in workloads.fitting_changes(job, device)
    ]
    if changes:
        return f"it fits with one of: {', '.join(changes)}"
    return "none of --attention flash, --recompute, --sharding and --tp alone makes it fit; combine them, or take --pp"


def _memory(job: workloads.TrainingJob, device: Device) -> dict[str, object]:
    """Return the bytes of a rank by stage, and whether they fit; None of a device whose memory is unknown."""
    stages, is_known = workloads.memory_by_stage(job), "memory_gb" in device.figures
    return {
        "memory": [each.content() for each in stages],
        "memory_bytes": workloads.job_memory(job).reserved,
        "usable_bytes": workloads.usable_bytes(device) if is_known else None,
        "fits": workloads.fits(job, device) if is_known else None,
        "fit": workloads.memory_fit(workloads.job_memory(job), device) if is_known else None,
    }


def _show_memory(job: workloads.TrainingJob) -> None:
    stages = workloads.memory_by_stage(job)
    shown = stages if len(stages) <= _STAGES else (*stages[: _STAGES // 2], *stages[-_STAGES // 2 :])
    columns = ("stage", "weights", "gradients", "optimizer", "activations", "buffers", "total", "reserved")
    cells = [(str(each.stage), *(f"{getattr(each, name) / 1e9:.1f}" for name in columns[1:])) for each in shown]
    print_table("GB of a rank by pipeline stage", columns, cells)
    print_lines(f"note: {workloads.parameter_bytes(job)}")
