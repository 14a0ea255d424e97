"""Front door of the toolkit: `import seqpoint as sp`, then `sp.open`, `sp.select`, `sp.project`.

Each function takes a trace (or its path) and returns a frozen result. A result shows itself in a notebook, and has
`.table()` (a pandas DataFrame), `.plot()` (a HoloViews object) and `.to_dict()` (the JSON of the command).
`.plot().save("plot.html")` writes a chart as one file that opens without a network. Each command of the command line is
a call of a function here. Heavy libraries load when a function needs them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from profilers.errors import InvalidInputError
from profilers.files import expanded_paths

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from profilers.devices import Device
    from profilers.ingest import Summary
    from profilers.ingest.pipeline import IngestOptions
    from profilers.plugins import Plugin
    from profilers.readers import Reader
    from profilers.trace import Trace
    from replay.costs.collectives import Topology
    from replay.costs.kernels import Predicted
    from replay.memory.system import CachePolicy
    from replay.serving import Requests
    from replay.what_ifs import Recipe, WhatIf
    from replay.workloads import Dlrm, InferenceJob, PredictedStep, TrainingJob
    from seqpoint.advising import TraceAdvice
    from seqpoint.characterization import Characterization
    from seqpoint.comparison import Comparison
    from seqpoint.description import Description
    from seqpoint.gemm_groups import ConcurrentGemms
    from seqpoint.gemm_table import TraceGemms
    from seqpoint.graphs import TraceReplay
    from seqpoint.iteration_table import IterationTable, LengthCandidates
    from seqpoint.memory_simulation import MemoryOptions, SimulatedMemory
    from seqpoint.projecting import ProjectOptions, TraceProjection
    from seqpoint.rank_survey import RankSurvey
    from seqpoint.reproducing import Reproduction
    from seqpoint.selection.another_run import RunEstimate
    from seqpoint.selection.kernels import KernelSampler
    from seqpoint.selection.selecting import SelectionResult, SelectOptions
    from seqpoint.serving_load import ServingLoad, ServingPhases
    from seqpoint.step_analysis import Analysis
    from seqpoint.step_sample import StepSample
    from seqpoint.validation.suites import Validation

O = TypeVar("O")  # noqa: E741 - options
#: Called with (done, in all, what) as work goes on.
Progress = Callable[[int, int, str], None]
Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

#: Suffixes of a log of iterations, which has no kernels.
_LOGS = (".csv", ".parquet")


def open(  # noqa: A001 - the verb of the front door, as in `xarray.open_dataset` and `PIL.Image.open`
    paths: Paths,
    *,
    iterations: str = "auto",
    length: str | None = None,
    classes: str | PathLike[str] | None = None,
    counters: Paths = (),
    execution_traces: Paths = (),
    captures: Paths = (),
    progress: Progress | None = None,
) -> "Trace":
    """Read trace files of any profiler into memory, or load a ``.trace`` folder or several.

    Parameters
    ----------
    paths : str, path or sequence of them
        Files, folders, or patterns such as ``"rank*.json.gz"``.
    iterations : str
        How iterations are found: ``"auto"`` (marks of the profiler, annotations, or the period of kernels), ``"file"``
        (each file is an iteration), ``"whole"`` (everything is one), or a regular expression that annotations match.
    length : str, optional
        Where sequence lengths come from: ``OPERATOR:ARGUMENT:DIMENSION``, such as ``aten::embedding:1:1``, or the name
        of a CSV file. ``seqpoint lengths`` lists candidates.
    classes : str or path, optional
        TOML file of your own classes of kernels, which come first: ``[[classes]]`` tables, each with pattern = 'NAME*'
        and class = 'gemm'.
    counters : str, path or sequence of them, optional
        Counters of the same job from Nsight Compute or rocprof-compute, which are joined to its kernels.
    execution_traces : str, path or sequence of them, optional
        Chakra execution traces of ranks of the same job, which are joined to its operators.
    captures : str, path or sequence of them, optional
        Traces of the same job while its graphs are captured, or without graphs, whose operators and shapes the kernels
        of CUDA or HIP graphs get.
    progress : callable, optional
        Called with (bytes read, bytes of all files, name of the file).

    Raises
    ------
    SeqPointError
        A file is missing, damaged or of no known format; the message names it. Or a ``.trace`` folder is given with
        options that were chosen when it was ingested.

    Examples
    --------
    >>> from profilers.files import dataset_path
    >>> trace = open(dataset_path("samples/cpu_epoch/epoch_threads1.pt.trace.json.zst"))
    >>> trace.iterations.num_rows
    112
    """
    from profilers.trace.store import load_trace, trace_folders

    files = expanded_paths(paths)
    is_plain = iterations == "auto" and not (length or classes or counters or execution_traces or captures)
    if is_plain and (folders := trace_folders(files)):
        if len(folders) == 1:
            return load_trace(folders[0])
        from profilers.writers.slicing import merge

        return merge([load_trace(folder) for folder in folders])
    from profilers.ingest.pipeline import IngestOptions, collect, open_trace
    from profilers.trace.kernels import read_class_rules

    joined = [tuple(expanded_paths(each)) if each else () for each in (counters, execution_traces, captures)]
    options = IngestOptions(
        iterations, length, progress, counters=joined[0], execution_traces=joined[1], captures=joined[2],
        class_rules=() if classes is None else read_class_rules(classes),
    )  # fmt: skip
    return open_trace(files[0], options) if len(files) == 1 else collect(files, options)


def ingest(
    paths: Paths,
    output: str | PathLike[str],
    *,
    options: "IngestOptions | None" = None,
    executor: "Executor | None" = None,
) -> "Summary":
    """Read trace files, or ``.trace`` folders of different ranks, into one ``.trace`` folder with bounded memory.

    A trace of more than 32 ranks is surveyed, too (see `survey`).

    Parameters
    ----------
    paths : str, path or sequence of them
        Files, folders, or patterns such as ``"rank*.json.gz"``.
    output : str or path
        Folder to write; its name ends in ``.trace``.
    options : IngestOptions, optional
        How iterations and lengths are found, what is joined, and how large a packed file may be.
    executor : Executor, optional
        Runs the reading: any object with ``submit``, such as ``dask.distributed.Client.get_executor()``, whose workers
        see the same files. By default one process a core, unless the files are small.

    Raises
    ------
    SeqPointError
        A file is missing, damaged or of no known format, or the folder cannot be written.
    """
    from seqpoint.opening import ingest_paths

    return ingest_paths(paths, output, options, executor)


def describe(trace: "Trace | Paths", *, by: str | Sequence[str] = ()) -> "Description":
    """Describe a trace: devices, steps, kernels by class, overlap, and the quality of the data.

    Of the path of a trace of more than 32 ranks, those are described that stand for all; `seqpoint.survey` compares
    all ranks.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace to describe.
    by : str or sequence of str
        Further tables to show first: ``"kernel"`` (kernels by name), ``"operator"`` (the operators that launched them)
        or ``"host"`` (operators, calls and Python functions by self time). `Description.table` always returns them.

    Raises
    ------
    SeqPointError
        The trace cannot be read, or there is no such table.
    """
    from seqpoint.description import describe as run

    return run(opened(trace), [by] if isinstance(by, str) else by)


def iterations(trace: "Trace | IterationTable | Paths") -> "IterationTable":
    """Return the iterations of a trace or log with their lengths and statistics.

    Parameters
    ----------
    trace : Trace, IterationTable, path or sequence of paths
        The trace, or a log (.csv or .parquet).

    Raises
    ------
    SeqPointError
        The trace or log cannot be read.
    """
    from seqpoint.iteration_table import IterationTable, iteration_table, read_log

    if isinstance(trace, IterationTable):
        return trace
    if isinstance(trace, str | PathLike) and is_log(trace):
        return read_log(Path(trace))
    return iteration_table(opened(trace))


def lengths(trace: "Trace | Paths") -> "LengthCandidates":
    """Return candidates for the sequence length: dimensions of operators' inputs that differ between iterations.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace, recorded with the shapes of operators.

    Raises
    ------
    SeqPointError
        The trace cannot be read, or has fewer than three iterations.
    """
    from seqpoint.iteration_table import find_lengths

    return find_lengths(opened(trace))


def select(
    trace: "Trace | IterationTable | Paths",
    *,
    max_points: int | None = None,
    max_iterations: int | None = None,
    target_error: float | None = None,
    statistic: str | None = None,
    selector: str | None = None,
    options: "SelectOptions | None" = None,
) -> "SelectionResult":
    """Select the iterations that represent a run, by sequence length (SeqPoint, arXiv 2007.10459).

    Parameters
    ----------
    trace : Trace, IterationTable, path or sequence of paths
        The run. A log of lengths and durations (.csv or .parquet) will do.
    max_points, max_iterations, target_error, statistic, selector
        Fields of the options, which replace those of `options`.
    options : SelectOptions, optional
        Limits of the selection, the statistic to total, and the selector.

    Raises
    ------
    InvalidInputError
        No iteration has a known length, or the statistic, selector, feature or rank is unknown.
    """
    from profilers.trace import Trace
    from seqpoint.iteration_table import IterationTable
    from seqpoint.selection.phases import select_by_phase as run
    from seqpoint.selection.selecting import SelectOptions
    from seqpoint.selection.stratified import kernel_profiles

    options = _with_given(
        options or SelectOptions(), max_points=max_points, max_iterations=max_iterations, target_error=target_error,
        statistic=statistic, selector=selector,
    )  # fmt: skip
    is_table = isinstance(trace, IterationTable) or (isinstance(trace, str | PathLike) and is_log(trace))
    source = trace if is_table else opened(trace)  # type: ignore[arg-type]
    table, profiles = iterations(source), None
    if options.selector == "k-medoids" and not options.features and isinstance(source, Trace):
        lowest = min(table.rank.tolist(), default=0)
        profiles = kernel_profiles(source, lowest if options.rank is None else options.rank)
    return run(table, options, profiles)


def estimate(
    selection: "SelectionResult | Mapping[str, Any]",
    trace: "Trace | IterationTable | Paths",
    *,
    base: "Trace | IterationTable | Paths",
    statistic: str | None = None,
) -> "RunEstimate":
    """Estimate the total of a run from the iterations that were selected on another run.

    Parameters
    ----------
    selection : SelectionResult, or mapping
        What `select` returned, or its `to_dict()`.
    trace : Trace, IterationTable, path or sequence of paths
        The run to estimate; it needs the selected iterations only.
    base : Trace, IterationTable, path or sequence of paths
        The run that the selection was made on.
    statistic : str, optional
        The statistic to total; that of the selection by default.

    Raises
    ------
    InvalidInputError
        A selected iteration is missing from a run, or lengths are unknown.
    """
    from seqpoint.selection.phases import estimate_by_phase

    points = selection if isinstance(selection, Mapping) else selection.to_dict()
    return estimate_by_phase(dict(points), (iterations(base), iterations(trace)), statistic)


def sample_kernels(
    trace: "Trace | Paths", *, relative_error: float = 0.01, confidence: float = 0.95, seed: int = 0
) -> "KernelSampler":
    """Select the kernels of a trace whose new times give the total of all within a planned error.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace whose kernels are sampled.
    relative_error : float
        Half-width of the interval to plan for, as a share of the total kernel time.
    confidence : float
        Confidence level of that interval.
    seed : int
        Seed of the draw.

    Returns
    -------
    KernelSampler
        Fitted: `indices_` are rows of ``trace.kernels``, `weights_` the kernels that each represents.
    """
    from seqpoint.selection.kernels import KernelSampler

    kernels = opened(trace).kernels
    sampler = KernelSampler(confidence=confidence, relative_error=relative_error, seed=seed)
    return sampler.fit(kernels)


def replay(
    trace: "Trace | Paths",
    *,
    iterations: Sequence[int] = (),
    device: str | None = None,
    progress: Progress | None = None,
) -> "TraceReplay":
    """Replay steps unchanged, and compare their times with the measured ones.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace to replay.
    iterations : sequence of int
        The iterations to replay; all by default.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say; ``seqpoint devices`` lists the names.
    progress : callable, optional
        Called with (graphs built, graphs in all, what).

    Raises
    ------
    NotFoundError, InvalidInputError
        The device or an iteration is unknown.
    """
    from seqpoint.graphs import all_iterations, replay_trace

    loaded = opened(trace)
    chosen = list(dict.fromkeys(iterations)) or all_iterations(loaded)
    return replay_trace(loaded, chosen, device=device, progress=progress)


def analyze(
    trace: "Trace | Paths",
    *,
    iteration: int | None = None,
    what_if: "str | WhatIf | None" = None,
    device: str | None = None,
    tasks: str | None = None,
) -> "Analysis":
    """Analyse a step: its critical path, overlap, idle time by cause, and its change under a what-if.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace that holds the step.
    iteration : int, optional
        The iteration; the one of median step time by default.
    what_if : str or WhatIf, optional
        A what-if to compare with, such as ``"overlap:ideal"``.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say; ``seqpoint devices`` lists the names.
    tasks : str, optional
        Tasks to count and time, in the grammar of the what-ifs, such as ``"copies=DtoH"`` or ``"gemm,phase=backward"``.

    Raises
    ------
    SeqPointError
        The iteration, device or what-if is unknown, the what-if cannot be applied, or no task is chosen.
    """
    from replay.graph.choice import TaskChoice
    from replay.what_ifs import parse_what_if
    from seqpoint.step_analysis import analyze_trace

    change = parse_what_if(what_if) if isinstance(what_if, str) else what_if
    choice = None if tasks is None else TaskChoice(tasks)
    return analyze_trace(opened(trace), iteration, what_if=change, device=device, tasks=choice)


def characterize(trace: "Trace | Paths", *, device: str | None = None) -> "Characterization":
    """Return where the time of a trace goes: operators, shapes, kernels, modules and phases, against the roofline.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace; FLOP and bytes need the shapes of operators.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say; ``seqpoint devices`` lists the names.

    Raises
    ------
    SeqPointError
        The trace cannot be read, or the device is unknown.
    """
    from seqpoint.characterization import characterize_trace

    return characterize_trace(opened(trace), device=device)


def serve(
    trace: "Trace | Paths | Sequence[Trace]",
    requests: "Requests | str | PathLike[str] | None" = None,
    *,
    rates: Sequence[float] = (),
    most_requests: int = 256,
    most_tokens: int = 8192,
    kv_tokens: int | None = None,
    seed: int | None = None,
    device: str | None = None,
) -> "ServingPhases | ServingLoad":
    """Return the steps of serving by phase; with requests, one engine under load, whose steps are those of the trace.

    Parameters
    ----------
    trace : Trace, path, sequence of paths, or sequence of Trace
        Trace of an engine whose annotations state the requests of each step. With requests, several traces of one
        engine may be given, such as one of decode and one of prefill.
    requests : Requests or path, optional
        Lengths and arrivals of requests, or a CSV or JSON file of them.
    rates : sequence of float
        Requests a second; by default 25 to 95 % of what the engine can serve.
    most_requests, most_tokens : int
        Slots of the engine, and tokens of a step.
    kv_tokens : int, optional
        Tokens that its cache holds; by default what fits beside the weights in 90 % of the device's memory.
    seed : int, optional
        Seed of Poisson arrivals; without it the arrivals of the file are scaled, or drawn with seed 0 if it has none.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    SeqPointError
        The trace or the requests cannot be read; or the trace has no step of serving with known requests.
    """
    from seqpoint.serving_load import serving_load, serving_phases

    traces = _several(trace)
    if requests is None:
        if len(traces) > 1:
            raise InvalidInputError("several traces are those of an engine under load; give requests")
        return serving_phases(characterize(traces[0], device=device))
    from replay.serving import Requests, read_requests

    sample = requests if isinstance(requests, Requests) else read_requests(fspath(requests))
    return serving_load(
        traces, sample, rates=rates, most_requests=most_requests, most_tokens=most_tokens, kv_tokens=kv_tokens,
        seed=seed, device=device,
    )  # fmt: skip


def _several(trace: "Trace | Paths | Sequence[Trace]") -> "list[Trace]":
    """Return traces as they are, and paths as the trace that they make together."""
    from profilers.trace import Trace

    if isinstance(trace, Trace | str | PathLike):
        return [opened(trace)]
    paths = [each for each in trace if not isinstance(each, Trace)]
    return [*(each for each in trace if isinstance(each, Trace)), *([open(paths)] if paths or not trace else [])]


def compare(
    before: "Trace | Paths | Iterable[Trace]",
    after: "Trace | Paths | Iterable[Trace]",
    *,
    what_if: "str | WhatIf | None" = None,
    device: str | None = None,
    same_job: bool = False,
    confidence: float = 0.99,
) -> "Comparison":
    """Compare two traces or groups of runs: what changed, where, and whether it is more than noise.

    Parameters
    ----------
    before, after : Trace, path, or several of them
        A trace or its path is one run. Each trace of a sequence, and each file that a pattern matches, is a run of its
        own; read the files of several ranks with `open` first.
    what_if : str or WhatIf, optional
        What-if that the runs before are projected with, such as ``"scale_device:V100"``; the result then tells how far
        the projection is from the runs after.
    device : str, optional
        Device that the projected traces were recorded on, if they do not say.
    same_job : bool
        Whether the step times are judged even if the sides run different operators.
    confidence : float
        Confidence level of the intervals.

    Raises
    ------
    SeqPointError
        A trace cannot be read, a side has none, the confidence is not between 0 and 1, or the what-if is unknown or
        cannot be applied.

    Examples
    --------
    >>> from profilers.files import dataset_path
    >>> trace = open(dataset_path("samples/cpu_epoch/epoch_threads1.pt.trace.json.zst"))
    >>> compare(trace, trace).summary()[0]
    'no difference beyond noise: the steps are identical'
    """
    from seqpoint.comparison import compare_samples

    if not 0 < confidence < 1:
        raise InvalidInputError(f"the confidence {confidence:g} is not between 0 and 1")
    sides = [_samples(before, _one_what_if(what_if), device), _samples(after)]
    if not all(sides):
        raise InvalidInputError("a side has no run; name a trace on each side")
    return compare_samples(sides[0], sides[1], same_job=same_job, confidence=confidence)


def _one_what_if(what_if: "str | WhatIf | None") -> "WhatIf | None":
    """Return the what-if that a text names."""
    if not isinstance(what_if, str):
        return what_if
    from seqpoint.projecting import parse_what_ifs

    chosen = parse_what_ifs([what_if])
    if len(chosen) != 1:
        raise InvalidInputError(f"{what_if} names {len(chosen)} what-ifs; a comparison takes one")
    return chosen[0]


def _samples(
    side: "Trace | Paths | Iterable[Trace]", what_if: "WhatIf | None" = None, device: str | None = None
) -> "list[StepSample]":
    """Return the steps of each run of a side, the first one with its critical path; one trace at a time is open."""
    from seqpoint.step_sample import step_sample, with_critical_path

    samples: list[StepSample] = []
    for run in _runs(side):
        trace = opened(run)
        if what_if is not None:
            from seqpoint.projected_steps import projected_sample

            samples.append(projected_sample(trace, what_if, device=device))
            continue
        sample = step_sample(trace)
        samples.append(sample if samples else with_critical_path(sample, trace))
    return samples


def _runs(side: "Trace | Paths | Iterable[Trace]") -> "Iterable[Trace | Path]":
    """Return the runs of one side of a comparison."""
    from profilers.trace import Trace

    if isinstance(side, Trace):
        return [side]
    if isinstance(side, str | PathLike):
        return expanded_paths(side)
    return (run for item in side for run in _runs(item))


def gemms(trace: "Trace | Paths", *, iteration: int | None = None, device: str | None = None) -> "TraceGemms":
    """Return the matrix products (GEMMs) of a trace by shape: time, efficiency, waves, tail, and why they are slow.

    It also finds the independent GEMMs of a step, and suggests how many of them to run side by side.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace, recorded with the shapes of operators.
    iteration : int, optional
        The iteration whose GEMMs are searched for groups; the one of median step time by default.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say; ``seqpoint devices`` lists the names.

    Raises
    ------
    SeqPointError
        The trace cannot be read, or the device or the iteration is unknown.
    """
    from seqpoint.gemm_table import find_gemms

    return find_gemms(opened(trace), iteration=iteration, device=device)


def advise(
    trace: "Trace | RankSurvey | Paths",
    *,
    minutes: float | None = None,
    max_points: int | None = None,
    device: str | None = None,
    name: str = "",
    progress: Progress | None = None,
) -> "TraceAdvice":
    """Say what limits the steps of a trace, what to do first, what is not worth it, and what stands against the answer.

    Parameters
    ----------
    trace : Trace, RankSurvey, path or sequence of paths
        The trace, or what `survey` says of one of many ranks.
    minutes : float, optional
        Time for the search, above 0; what was found by then is returned. By default 1, and 0.1 of more than 32 ranks.
    max_points : int, optional
        Most representatives of the iterations that are replayed; by default 2, and 1 of more than 32 ranks.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say; ``seqpoint devices`` lists the names.
    name : str
        Path of the trace in the commands that the advice names; by default that of `trace`, or of its first file.
    progress : callable, optional
        Called with (steps done, steps in all, what).

    Raises
    ------
    SeqPointError
        The trace cannot be read or replayed, or the device is unknown.
    """
    from seqpoint.advising import advise_trace
    from seqpoint.opening import surveyed
    from seqpoint.projecting import ProjectOptions

    name = name or (fspath(trace) if isinstance(trace, str | PathLike) else "")
    survey = surveyed(trace)
    options = ProjectOptions(max_points=max_points or (1 if survey else 2), device=device, progress=progress)
    # Of many ranks the slow parts come first, and whoever asks wants them now.
    loaded, most = (opened(trace), 1.0) if survey is None else (survey.trace(), 0.1)  # type: ignore[arg-type]
    advice = advise_trace(loaded, name=name, minutes=most if minutes is None else minutes, options=options)
    return advice if survey is None else replace(advice, ranks=survey.heads())


def project(
    trace: "Trace | Paths",
    what_ifs: "Sequence[str | WhatIf]" = (),
    *,
    iterations: Sequence[int] = (),
    max_points: int | None = None,
    device: str | None = None,
    draws: int | None = None,
    options: "ProjectOptions | None" = None,
    progress: Progress | None = None,
) -> "TraceProjection":
    """Project what each what-if would gain, with an interval.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace whose iterations are projected.
    what_ifs : sequence of str or WhatIf
        What-ifs to project, such as ``"overlap:ideal"``; ``+`` composes several, ``@FILE.toml`` names a plan, and
        ``overlap:all`` stands for every overlap, ranked; ``seqpoint what-ifs`` lists them. By default common ones that
        apply to the job.
    iterations, max_points, device, draws
        Fields of the options, which replace those of `options`.
    options : ProjectOptions, optional
        What is projected on, what the trace does not tell, and how the interval is found.
    progress : callable, optional
        Called with (steps done, steps in all, what).

    Raises
    ------
    SeqPointError
        A what-if, the device or an iteration is unknown, or a what-if cannot be applied.
    """
    from seqpoint.projecting import ProjectOptions, project_texts

    options = _with_given(
        options or ProjectOptions(), iterations=tuple(iterations) or None, max_points=max_points, device=device,
        draws=draws, progress=progress,
    )  # fmt: skip
    return project_texts(opened(trace), [what_ifs] if isinstance(what_ifs, str) else list(what_ifs), options)


def reproduce(
    trace: "Trace | Paths",
    result: "str | PathLike[str] | Mapping[str, Any]",
    *,
    jobs: int = 0,
    progress: Progress | None = None,
) -> "Reproduction":
    """Compute a projection again from what ``seqpoint project --json`` wrote, and compare every number.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace of the projection.
    result : path or mapping
        The file that the command wrote, or its content.
    jobs : int
        Draws at a time; it does not change the numbers.
    progress : callable, optional
        Called with (steps done, steps in all, what).

    Raises
    ------
    SeqPointError
        The file is damaged, or of another trace.
    """
    from seqpoint.reproducing import read_result
    from seqpoint.reproducing import reproduce as run

    content = dict(result) if isinstance(result, Mapping) else read_result(fspath(result))
    return run(opened(trace), content, jobs=jobs, progress=progress)


def report(
    trace: "Trace | Paths",
    output: str | PathLike[str],
    what_ifs: "Sequence[str | WhatIf]" = (),
    *,
    title: str | None = None,
    max_points: int | None = None,
    device: str | None = None,
    earlier: "Trace | Paths | None" = None,
    name: str = "",
) -> Path:
    """Write a self-contained HTML report: the advice first, then where time goes, steps, overlap and what-ifs.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace to report on.
    output : str or path
        File to write.
    what_ifs : sequence of str or WhatIf
        What-ifs to project beside the actions of the advice, see `project`.
    title : str, optional
        Title of the page; the name of the trace by default.
    max_points : int, optional
        Most representatives; by default 8 of a selection by length, and 2 that are replayed, as in `advise`.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say; ``seqpoint devices`` lists the names.
    earlier : Trace, path or sequence of paths, optional
        An earlier trace of the job; the report says what changed since.
    name : str
        Path of the trace in the commands that the report names; by default that of `trace`, or of its first file.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    SeqPointError
        A what-if or the device is unknown, a what-if cannot be applied, or the file cannot be written.
    """
    import numpy as np

    from profilers.files import file_to_write
    from seqpoint.advising import advise_windows
    from seqpoint.graphs import contention_of
    from seqpoint.projecting import ALL_OVERLAPS, ProjectOptions, TraceWindows, named_what_ifs

    target = file_to_write(Path(output))
    name = name or (fspath(trace) if isinstance(trace, str | PathLike) else "")
    loaded = opened(trace)
    heading = title or Path(name or next(iter(loaded.meta.sources), "")).name or "trace"
    items = [what_ifs] if isinstance(what_ifs, str) else list(what_ifs)
    # One run at a time, since two at a time take twice the memory.
    options = ProjectOptions(max_points=max_points or 2, device=device, jobs=1)
    advice, projection = advise_windows(TraceWindows.of(loaded, options), named_what_ifs(items), name=name)
    description = describe(loaded)
    has_lengths = bool(np.isfinite(description.iterations.sequence_length).any())
    selection = select(description.iterations, max_points=max_points or 8) if has_lengths else None
    from seqpoint.reporting import ReportContent, ReportSection, write_report  # charts, which take memory

    section = ReportSection(
        heading, "synthetic" if loaded.meta.synthetic else "", description, selection,
        projection.ranked() if ALL_OVERLAPS in items else projection, contention_of(loaded, device=device),
        characterize(loaded, device=device) if loaded.kernels.num_rows else None, advice,
        None if earlier is None else compare(earlier, loaded),
    )  # fmt: skip
    return write_report(ReportContent(heading, (section,)), target)


def synthesize(
    job: "TrainingJob | InferenceJob | Dlrm",
    device: "str | Device",
    *,
    steps: int = 1,
    lengths: Sequence[int] = (),
    ranks: int = 8,
) -> "Trace":
    """Return the trace of a job with predicted times; it is marked as synthetic.

    Parameters
    ----------
    job : TrainingJob, InferenceJob or Dlrm
        A Megatron-LM job: a `Transformer`, its batch, and a `Layout` of tensor, pipeline and data parallelism. Or the
        steps of one phase of inference. Or a recommendation model, of which one rank stands for all.
    device : str or Device
        A device of the catalogue.
    steps : int
        Number of training iterations; of each of the `lengths`, if they are given.
    lengths : sequence of int
        Sequence lengths of successive training iterations of a transformer; by default all have that of the job.
    ranks : int
        Ranks of a recommendation model, in nodes of eight.

    Raises
    ------
    SeqPointError
        The device is unknown, or lacks a figure that is needed, or the ranks do not fill their nodes.
    """
    from replay import workloads
    from replay.costs.shipped import load_parameters

    target, parameters = _device(device), load_parameters()
    if isinstance(job, workloads.Dlrm):
        cluster = workloads.nodes_of(ranks, 8, target.name)
        return workloads.dlrm_trace(job, cluster, parameters=parameters, steps=steps)
    if isinstance(job, workloads.InferenceJob):
        return workloads.inference_trace(job, target, parameters=parameters)
    fit, lengths = workloads.load_training(), tuple(lengths or (job.length,)) * steps
    return workloads.training_trace(job, target, fit=fit, parameters=parameters, lengths=lengths)


def predict_step(job: "TrainingJob", device: "str | Device") -> "PredictedStep":
    """Predict the time of a training step, with an interval and its parts.

    Parameters
    ----------
    job : replay.workloads.TrainingJob
        A Megatron-LM job with tensor, pipeline and data parallelism.
    device : str or Device
        A device of the catalogue.

    Raises
    ------
    SeqPointError
        The device is unknown, or lacks a figure that is needed.
    """
    from replay.costs.shipped import load_parameters
    from replay.workloads import load_training, predict_steps

    return predict_steps([job], _device(device), fit=load_training(), parameters=load_parameters())[0]


def predict(
    kind: str,
    shapes: Sequence[Sequence[float]],
    device: "str | Device",
    *,
    dtype: str = "fp16",
    library: str | None = None,
) -> "Predicted":
    """Predict how long an operator takes on a device, from its shapes and the device's data sheet.

    Parameters
    ----------
    kind : str
        Kind of operator, such as ``"matmul"``, ``"softmax"`` or ``"context_attention"``.
    shapes : sequence of sequence of float
        Shapes: batch, m, n and k of a product; rows and columns of other operators; sequences, query tokens, KV tokens,
        query heads, KV heads, head dimension and window (0: none) of attention. A wrong number of columns gives an
        error that names those of the kind, such as the nine of ``"experts"`` and the nineteen of ``"convolution"``.
    device : str or Device
        A device of the catalogue.
    dtype : str
        Data type, such as ``"fp16"``.
    library : str, optional
        Library whose kernels run, of kinds that were measured in several: ``"trtllm"`` (the default), ``"vllm"`` or
        ``"sglang"``.

    Raises
    ------
    SeqPointError
        The kind, device, data type or library is unknown, or a shape is not positive.

    Examples
    --------
    >>> predicted = predict("matmul", [[1, 4096, 4096, 4096]], "A100-SXM4-80GB")
    >>> bool(0.3e-3 < predicted.seconds[0] < 1.2e-3)
    True
    """
    from replay.costs.kernels import load_calibration
    from replay.costs.kernels import predict as run

    return run(kind, shapes, _device(device), dtype=dtype, library=library, calibration=load_calibration())


def predict_collective(
    kind: str, sizes: Sequence[int], topology: "Topology", device: "str | Device", *, library: str = "nccl"
) -> "Predicted":
    """Predict how long a collective takes.

    Parameters
    ----------
    kind : str
        ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"all_to_all"`` or another of
        `replay.costs.collectives.KINDS`.
    sizes : sequence of int
        Message sizes in bytes.
    topology : Topology
        Number of devices that take part, and of devices in a node.
    device : str or Device
        A device of the catalogue.
    library : str
        One of `replay.costs.collectives.LIBRARIES`.

    Raises
    ------
    SeqPointError
        The kind, device or library is unknown.
    """
    from replay.costs.collectives import load_collectives
    from replay.costs.collectives import predict_collective as run

    return run(kind, list(sizes), topology, _device(device), load_collectives(), library=library)


def simulate_gemms(
    shapes: Sequence[Sequence[int]], device: "str | Device", *, dtype: str = "fp16", degrees: Sequence[int] = ()
) -> "ConcurrentGemms":
    """Run copies of matrix products (GEMMs) side by side on a device, with kernels tuned for it (GOLDYLOC).

    Nothing is measured: a model of kernels gives their times, and the engine shares the device.

    Parameters
    ----------
    shapes : sequence of sequence of int
        m, n and k of each GEMM, or batch, m, n and k.
    device : str or Device
        A device of the catalogue.
    dtype : str
        Data type, such as ``"fp16"``.
    degrees : sequence of int
        Copies side by side; 1, 2, 4, 8 and 16 by default.

    Raises
    ------
    SeqPointError
        The device or the data type is unknown, or a shape or a degree is not positive.

    Examples
    --------
    >>> simulated = simulate_gemms([(128, 1024, 1024)], "MI100", degrees=[1, 4])
    >>> alone, four = simulated.kernels
    >>> alone.speedup, 1.0 < four.speedup <= 4.0
    (1.0, True)
    """
    from replay.gemms.tuning import DEGREES
    from seqpoint.gemm_groups import simulate_gemms as run

    return run(shapes, _device(device), dtype=dtype, degrees=list(degrees) or DEGREES)


def simulate_memory(
    operator: str,
    shape: Sequence[int],
    device: "str | Device" = "A100-SXM4-80GB",
    *,
    policies: "Sequence[str | CachePolicy]" = (),
    policy_file: str | PathLike[str] | None = None,
    options: "MemoryOptions | None" = None,
    progress: Progress | None = None,
) -> "SimulatedMemory":
    """Simulate the caches and the DRAM under an operator of known shape, for each cache policy.

    Parameters
    ----------
    operator : str
        Kind of operator, such as ``"gemm"``; ``seqpoint simulate memory --list`` prints all.
    shape : sequence of int
        Its dimensions, such as m, n and k of a product.
    device : str or Device
        A device of the catalogue.
    policies : sequence of str or CachePolicy
        Cache policies; by default all that are shipped, and those of the file.
    policy_file : str or path, optional
        TOML file of further policies.
    options : MemoryOptions, optional
        How the operator runs, and what differs from the device.
    progress : callable, optional
        Called with (policies done, policies in all, name of the policy).

    Raises
    ------
    SeqPointError
        The operator, device, policy, mapping or another name is unknown, or a shape or a cache is not possible.

    Examples
    --------
    >>> result = simulate_memory("copy", [100_000], "CachePolicy-GPU", policies=["Uncached", "CacheRW"])
    >>> [(row["policy"], row["dram_read_bytes"]) for row in result.rows]
    [('Uncached', 200000.0), ('CacheRW', 200000.0)]
    """
    from replay.costs.kernels import load_calibration
    from replay.memory.system import find_policy, load_policies
    from seqpoint.memory_simulation import MemoryOptions, simulate_operator

    chosen = [find_policy(each, policy_file) if isinstance(each, str) else each for each in policies]
    return simulate_operator(
        (operator, shape),
        _device(device),
        chosen or list(load_policies(policy_file).values()),
        options or MemoryOptions(),
        calibration=load_calibration(),
        progress=progress,
    )


def validate(
    suite: str = "",
    paths: Paths = (),
    *,
    options: "Mapping[str, Any] | None" = None,
    progress: Callable[[str], Progress | None] | None = None,
) -> "Validation":
    """Score what the toolkit says against what was measured or published.

    Parameters
    ----------
    suite : str
        Name of a suite, such as ``"selection"`` or ``"published"``; by default a scoreboard of all suites.
    paths : str, path or sequence of them
        Measurements: files, folders of any depth, or patterns. By default those that the project ships.
    options : mapping of str to object, optional
        Options of the suite, as the command has them, such as ``{"node_devices": 4}``.
    progress : callable, optional
        Called with what begins. It returns a function that is called with (done, in all, what), or None.

    Raises
    ------
    SeqPointError
        There is no such suite, it has no such option, or no path holds what it reads.
    """
    from seqpoint.validation.suites import validate as run

    names = [paths] if isinstance(paths, str | PathLike) else list(paths)
    return run(suite, expanded_paths(names) if names else [], options or {}, progress)


def what_ifs() -> "Mapping[str, Recipe]":
    """Return every what-if by name: the project's own, and those of installed packages."""
    from replay.what_ifs import what_ifs as run

    return run()


def devices() -> "Mapping[str, Device]":
    """Return the device catalogue by name; each figure has its source."""
    from profilers.devices import load_devices

    return load_devices()


def readers() -> "tuple[Plugin[Reader], ...]":
    """Return the readers of trace formats, each with its package; for one that cannot be loaded, the reason."""
    from profilers.readers import readers as run

    return tuple(run())


def _with_given(options: O, **given: Any) -> O:
    """Return frozen options with the given fields that are not None."""
    return replace(options, **{name: value for name, value in given.items() if value is not None})  # type: ignore[type-var]


def _device(device: "str | Device") -> "Device":
    from profilers.devices import find_device

    return find_device(device) if isinstance(device, str) else device


def opened(trace: "Trace | Paths") -> "Trace":
    """Return a trace unchanged, or open the trace of a path; of more than 32 ranks, those that stand for all."""
    from profilers.trace import Trace
    from seqpoint.opening import ready, surveyed

    survey = surveyed(trace)
    return survey.trace() if survey else trace if isinstance(trace, Trace) else open(ready(trace))


def is_log(path: str | PathLike[str]) -> bool:
    """Return whether a path is a log of iterations (.csv or .parquet) rather than a trace."""
    path = Path(path)
    return path.suffix.lower() in _LOGS and not path.is_dir()
