"""Job what-ifs: another batch, length, size or split of the traced transformer.

`replay.workloads.traced_job` finds the sizes of the job in the step, `replay.what_ifs.job_shapes` gives kernels and
collectives the new ones, and `replay.what_ifs.job_graph` cuts and copies layers, and puts collectives in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Ints
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.graph.edit import in_lane_order, next_left_on_lane, with_host_time, without_tasks
from replay.graph.graph import COLLECTIVE_KINDS, KernelGraph, TaskKind
from replay.graph.operators import DTYPE_BYTES
from replay.what_ifs.job_graph import (
    LayerPass,
    Replicas,
    find_runs,
    gradient_exchanges,
    with_calls,
    with_collectives,
    with_copies,
    with_exchanges,
    with_new_collectives,
)
from replay.what_ifs.job_shapes import (
    BACK,
    BACKWARD,
    OPTIMIZER,
    SHARED_K,
    TYPES,
    Edit,
    attention_roles,
    compute_streams,
    edited_graph,
    product_type,
    weight_elements,
)
from replay.what_ifs.registry import parse_what_if
from replay.what_ifs.serving import step_requests
from replay.what_ifs.serving_parallel import is_serving, shared_experts, shared_layers
from replay.what_ifs.what_if import Argument, WhatIf, recipe, split_words, what_if_text
from replay.workloads import SCHEDULES, load_training, read_job
from replay.workloads.architecture import checked_size
from replay.workloads.jobs import Layout, divisors
from replay.workloads.traced_job import (
    OperatorCalls,
    TracedJob,
    find_job,
    state_elements,
    tensor_exchanges,
)
from replay.workloads.training import host_slowdown

_NUMBER = Argument("number", "new number", "whole")
_JOB = Argument("job", "TOML file with a table [job], for sizes that the trace does not tell", default="")


def _what_if(
    name: str,
    number: int,
    job: str,
    change: Callable[[KernelGraph, TracedJob, Parameters], KernelGraph],
    *more: str,
    grown: Callable[[TracedJob], float] = lambda traced: 1.0,
    serving: Callable[[KernelGraph, int, Parameters], KernelGraph] | None = None,
) -> WhatIf:
    """Return the what-if of an edit, which changes a graph whose job is found first; `grown` is the ratio of tokens.

    With `serving`, a step of serving needs no job: that changes it.
    """
    checked_size(name, number)
    given = read_job(job) if job else None

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        graph = in_lane_order(graph)
        if serving is not None and is_serving(graph):
            return serving(graph, number, parameters)
        return change(graph, find_job(graph, given), parameters)

    def tokens(graph: KernelGraph) -> tuple[float, float]:
        if serving is not None and is_serving(graph):
            steps = step_requests(graph).values()
            return (sum(step.tokens for step in steps) / len(steps),) * 2
        traced = find_job(graph, given)
        of_step = float(traced.sizes["batch"] * traced.sizes["length"] * traced.micro_batches)
        return of_step, of_step * grown(traced)

    words = [str(number), *more, *([job] if job else [])]
    return WhatIf(what_if_text(name, *words), transform, retimes=True, tokens=tokens)


@recipe("job", "micro_batch:32", _NUMBER, _JOB)
def micro_batch(number: int, job: str = "") -> WhatIf:
    """Run NUMBER sequences in each pass, instead of those of the trace.

    Every operator is re-timed from its traced duration: the time of a kernel without work stays, and the rest goes with
    the modelled time of its work. Tensors are found by their shapes; weights, gradients and the optimizer stay.

    Not modelled: kernels that a library would choose for the new shape, and host work that depends on the batch.

    Source: `replay.workloads.traced_job` for the sizes, `replay.costs` for durations; docs/what_ifs.md has the measured
    errors.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step is no transformer whose sizes are known.
    """
    return _resize("micro_batch", number, job, lambda traced: {"batch": number})


@recipe("job", "sequence_length:4096", _NUMBER, _JOB)
def sequence_length(number: int, job: str = "") -> WhatIf:
    """Run sequences of NUMBER tokens.

    As `micro_batch`; attention's scores go with the square of the length.

    Not modelled: as of `micro_batch`.

    Source: as of `micro_batch`.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step is no transformer whose sizes are known.
    """
    return _resize("sequence_length", number, job, lambda traced: {"length": number})


@recipe("job", "hidden:8192", _NUMBER, _JOB)
def hidden(number: int, job: str = "") -> WhatIf:
    """Change the hidden size to NUMBER; heads keep their width, and the feed-forward layer its ratio.

    As `micro_batch`; the optimizer and collectives of gradients go with the number of weights.

    Not modelled: as of `micro_batch`.

    Source: as of `micro_batch`.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step is no transformer whose sizes are known, or heads do not scale to
        a whole number.
    """

    def sizes(traced: TracedJob) -> dict[str, int]:
        before, old = traced.sizes, traced.sizes["hidden"]
        names = [name for name in ("heads", "kv_heads", "feedforward") if name in before]
        for name in names:
            if before[name] * number % old:
                raise InvalidInputError(
                    f"{name} of {before[name]} for a hidden size of {old} do not scale to a whole number; take a "
                    f"multiple of {old // np.gcd(old, before[name])}"
                )
        return {"hidden": number} | {name: before[name] * number // old for name in names}

    return _resize("hidden", number, job, sizes)


def _resize(name: str, number: int, job: str, sizes: Callable[[TracedJob], dict[str, int]]) -> WhatIf:
    def change(graph: KernelGraph, traced: TracedJob, parameters: Parameters) -> KernelGraph:
        return edited_graph(graph, Edit(name, traced, sizes(traced), traced.tensor), parameters)

    def grown(traced: TracedJob) -> float:
        new = {**traced.sizes, **sizes(traced)}
        return new["batch"] * new["length"] / (traced.sizes["batch"] * traced.sizes["length"])

    return _what_if(name, number, job, change, grown=grown)


@recipe("job", "layers:48", _NUMBER, _JOB)
def layers(number: int, job: str = "") -> WhatIf:
    """Run NUMBER layers on each rank, instead of those of the trace.

    The last layers of the trace are cut or copied in every pass, forward and backward, with the host's calls. The
    optimizer and collectives of gradients go with the number of weights.

    Not modelled: caches that more layers would fill, and layers that differ from the last ones.

    Source: operators that repeat, as `replay.what_ifs.job_graph` finds them.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step is no transformer whose layers repeat.
    """

    def change(graph: KernelGraph, traced: TracedJob, parameters: Parameters) -> KernelGraph:
        return _with_layers(graph, traced, number, "layers", parameters)

    return _what_if("layers", number, job, change)


def _with_layers(graph: KernelGraph, traced: TracedJob, number: int, name: str, parameters: Parameters) -> KernelGraph:
    """Return the graph with other layers, and weights that follow."""
    if number == traced.layers:
        return graph.with_notes([f"{name}: the step has {number} layers already"])
    if (graph.tasks.collective == COLLECTIVE_KINDS.index("send_recv")).any():
        raise InvalidInputError(
            f"the trace has pipeline stages of {traced.layers} layers, whose micro-batches overlap; their layers "
            "cannot be cut or copied. Possible: micro_batch, sequence_length, hidden, tensor_parallel, data_parallel"
        )
    runs = [run for run in _runs(graph, traced) if run.way != OPTIMIZER]
    if not all(run.blocks for run in runs if len(run.rows[0]) > traced.layers):
        raise InvalidInputError(
            f"no block of kernels repeats {traced.layers} times in every pass of the step, so layers cannot be cut or "
            "copied (a step of one layer, or layers that differ)"
        )
    runs = [run for run in runs if run.blocks]
    if len(graph.tasks) * number / traced.layers > _MOST_TASKS:
        most = int(_MOST_TASKS * traced.layers / len(graph.tasks))
        raise InvalidInputError(f"{number} layers make a graph of more than {_MOST_TASKS:,} tasks; take {most} at most")
    resized = edited_graph(graph, Edit(name, traced, {}, traced.tensor, number / traced.layers), parameters)
    before = int(graph.on_device().sum())
    ends = [run.way == BACKWARD for run in runs]
    if number < traced.layers:
        less = traced.layers - number
        spans = [(0, less) if back else (number, traced.layers) for back in ends]
        cut = np.logical_or.reduce([run.layers(graph, *span) for run, span in zip(runs, spans, strict=True)])
        gone = np.asarray(cut)
        changed = without_tasks(resized, gone, heirs=next_left_on_lane(resized, gone))
    else:
        spans = [(0, 1) if back else (traced.layers - 1, traced.layers) for back in ends]
        masks = [run.layers(graph, *span) for run, span in zip(runs, spans, strict=True)]
        changed = with_copies(resized, masks, number - traced.layers)
    after = int(changed.on_device().sum())
    return changed.with_notes([f"{name}: {traced.layers} layers became {number}, tasks of devices {before} to {after}"])


#: Tasks of the largest graph that layers are copied into, about 2 GB.
_MOST_TASKS = 4_000_000


def _runs(graph: KernelGraph, traced: TracedJob) -> list[LayerPass]:
    return find_runs(graph, compute_streams(graph), traced.layers)


@recipe("job", "tensor_parallel:8", _NUMBER, _JOB)
def tensor_parallel(number: int, job: str = "") -> WhatIf:
    """Share each layer among NUMBER ranks, as Megatron-LM does.

    Heads, the feed-forward layer and the vocabulary are shared; a rank computes its share of each product. If the trace
    shows no sharing, two all-reduces of the hidden state of all tokens are added in each layer and direction, after the
    products whose results are partial sums; one after the embedding, and three of a number a token in the loss. Next
    kernels wait for them, and the host calls each. Else those of the trace are re-timed for the new number of ranks, or
    left out for one rank. The host of a training step is slower by a share for each rank, as hosts of Megatron-LM are.
    The graph keeps its ranks, which stand for all. A step of serving needs no transformer of known sizes: the order of
    its products tells how ranks share them; logits are gathered.

    Not modelled: sequence parallelism, a gather of logits in inference, and sharing of layers that are no products
    beside attention.

    Source: Megatron-LM (arXiv 1909.08053); `replay.costs.collectives` for the times.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: it does not divide the heads or the feed-forward size, the step is no
        transformer whose sizes are known, or has no products after which ranks would exchange data.
    """

    def change(graph: KernelGraph, traced: TracedJob, parameters: Parameters) -> KernelGraph:
        if number == traced.tensor:
            return graph.with_notes([f"tensor_parallel: {number} ranks share a layer already"])
        edited = edited_graph(graph, Edit("tensor_parallel", traced, _shared(traced, number), number), parameters)
        if traced.training:
            costs = load_training().costs
            edited = with_host_time(edited, host_slowdown(number, costs) / host_slowdown(traced.tensor, costs))
        if traced.tensor > 1:
            if number > 1:
                return edited
            # Nothing is exchanged by one rank.
            gone = with_calls(graph, tensor_exchanges(graph, traced))
            return without_tasks(edited, gone, heirs=next_left_on_lane(edited, gone))
        after, kinds = _partial_sums(graph, traced)
        if not len(after):
            raise InvalidInputError(
                "no product whose result is a partial sum was found in the layers, so nothing tells where ranks that "
                "share them would exchange data"
            )
        size = state_elements(traced.sizes) * _element_bytes(graph)
        columns = {"bytes": size, "ranks": number, "phase": graph.tasks.phase[after]}
        added = with_new_collectives(edited, "all_reduce", after, columns, parameters)
        note = f"tensor_parallel: {len(after)} all-reduces of {size / 1e6:.1f} MB added ({kinds})"
        of_loss = _loss_sums(graph, traced)
        if len(of_loss):
            few = {"bytes": _NUMBER_BYTES * state_elements(traced.sizes) // traced.sizes["hidden"], "ranks": number}
            added = with_new_collectives(added, "all_reduce", of_loss, few, parameters)
            note += f", and {len(of_loss)} of the loss"
        return added.with_notes([note])

    return _what_if("tensor_parallel", number, job, change, serving=shared_layers)


def _shared(traced: TracedJob, number: int) -> dict[str, int]:
    """Return the sizes of a rank if so many ranks share a layer."""
    sizes, ranks = traced.sizes, traced.tensor
    shared = {}
    for name in ("heads", "feedforward"):
        whole = sizes.get(name, 0) * ranks
        if whole % number:
            raise InvalidInputError(
                f"{number} tensor-parallel ranks do not divide {name} of {whole}; {divisors(whole)} ranks do"
            )
        if whole:
            shared[name] = whole // number
    shared["kv_heads"] = max(sizes["kv_heads"] * ranks // number, 1)
    if "vocabulary" in sizes:
        unit = _VOCABULARY_UNIT * number
        shared["vocabulary"] = -(-sizes["vocabulary"] * ranks // unit) * unit // number
    return shared


#: Megatron-LM fills the vocabulary up to a multiple of this for each rank.
_VOCABULARY_UNIT = 128


#: Bytes of a number of a token that ranks exchange for the loss.
_NUMBER_BYTES = 4


def _element_bytes(graph: KernelGraph) -> int:
    """Return the bytes of an element of activations: of the type of most products."""
    return DTYPE_BYTES[TYPES[product_type(graph)]]


def _partial_sums(graph: KernelGraph, traced: TracedJob) -> tuple[Ints, str]:
    """Return the rows of products whose results are partial sums if ranks share layers, and a text for a note."""
    calls, sizes = OperatorCalls(graph), traced.sizes
    tokens, inner = sizes["batch"] * sizes["length"], sizes["heads"] * sizes["width"]
    wide = {
        inner + 2 * sizes["kv_heads"] * sizes["width"],
        *(sizes.get(name, 0) * times for name, times in (("feedforward", 1), ("feedforward", 2), ("vocabulary", 1))),
    } - {0, sizes["hidden"]}
    found_rows: list[int] = []
    for rows in compute_streams(graph):
        numbers = graph.tasks.call[rows]
        roles = attention_roles(graph, rows, calls, traced)
        for place, (row, number) in enumerate(zip(rows.tolist(), numbers.tolist(), strict=True)):
            operator = calls.operator(number)
            if number >= 0 and calls.calls[number].name == _EMBEDDING and roles[place] & BACK == 0:
                after_it = numbers[place + 1] if place + 1 < len(rows) else -1
                if after_it < 0 or calls.calls[after_it].name != _EMBEDDING:
                    found_rows.append(row)  # the embedding, whose rows ranks share
                continue
            if operator is None or operator.kind != "matmul" or operator.dims[:3] != (1, tokens, sizes["hidden"]):
                continue
            if place + 1 < len(rows) and numbers[place + 1] == number:
                continue  # a further kernel of the same call follows
            back = bool(roles[place] & BACK)
            closes = bool(roles[place] & SHARED_K) and not back
            if operator.dims[3] in wide or closes or (operator.dims[3] == inner != sizes["hidden"] and not back):
                found_rows.append(row)
    way = graph.tasks.phase[found_rows] == BACKWARD
    return np.array(found_rows, dtype=np.int64), f"{int((~way).sum())} forward, {int(way.sum())} backward"


_EMBEDDING = "aten::embedding"


def _loss_sums(graph: KernelGraph, traced: TracedJob) -> Ints:
    """Return the rows of the kernels after which ranks that share the vocabulary exchange numbers of the loss.

    They exchange the largest logit, the logit of the target and the sum of exponentials of each token.
    """
    calls, sizes = OperatorCalls(graph), traced.sizes
    logits = (1, sizes["batch"] * sizes["length"], sizes.get("vocabulary", 0), sizes["hidden"])
    chosen: list[int] = []
    for rows in compute_streams(graph) if traced.training else []:
        is_back = graph.tasks.phase[rows] >= BACKWARD
        passed = np.cumsum(is_back)
        for place, number in enumerate(graph.tasks.call[rows].tolist()):  # a lookup for each kernel
            operator = calls.operator(number)
            if operator is not None and operator.dims == logits and not is_back[place]:
                last = int(np.searchsorted(passed, passed[place], "right")) - 1
                chosen += [int(rows[min(place + later, last)]) for later in _LOSS]
    return np.array(chosen, dtype=np.int64)


#: Kernels of Megatron-LM's loss after the logits, after which ranks exchange a number of each token.
_LOSS = (2, 4, 6)


@recipe("job", "data_parallel:64", _NUMBER, _JOB)
def data_parallel(number: int, job: str = "") -> WhatIf:
    """Run NUMBER replicas, each with the batch of the trace.

    Collectives of gradients are re-timed for the new number of ranks. If the trace has none, one all-reduce a layer is
    added, beside the backward pass of the layers before; the optimizer waits for them. A step of inference stays.

    Not modelled: stragglers among more ranks, another global batch, and buckets of other sizes.

    Source: `replay.costs.collectives`; overlap with the backward pass as in PyTorch DDP (arXiv 2006.15704).

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step is no transformer whose sizes are known.
    """

    def change(graph: KernelGraph, traced: TracedJob, parameters: Parameters) -> KernelGraph:
        if not traced.training or number == traced.data:
            why = (
                f"{number} replicas run already"
                if traced.training
                else "the step has no backward pass. Replicas of an inference step exchange nothing, so its time stays"
            )
            return graph.with_notes([f"data_parallel: {why}"])
        if traced.data > 1:
            tasks, rows = graph.tasks, gradient_exchanges(graph, traced)
            replicas = Replicas(rows, Layout(traced.tensor, traced.data), Layout(traced.tensor, number))
            ranks = np.where(rows, number, tasks.ranks)
            resized, moved = with_exchanges(graph, tasks.bytes, ranks, parameters, replicas=replicas)
            note = (
                f"data_parallel: {moved} collectives re-timed, from {traced.data} ranks to {number}; "
                "they overlap kernels as in the trace"
            )
            return with_demands(resized, parameters).with_notes([note])
        return _with_gradients(graph, traced, number, parameters)

    return _what_if("data_parallel", number, job, change)


def _with_gradients(graph: KernelGraph, traced: TracedJob, number: int, parameters: Parameters) -> KernelGraph:
    """Return the graph with all-reduces of gradients in the last backward pass."""
    backward = [run for run in _runs(graph, traced) if run.way == BACKWARD]
    update = [run for run in _runs(graph, traced) if run.way == OPTIMIZER]
    if not backward:
        raise InvalidInputError("the step has no backward pass on its compute stream; nobody knows when gradients are")
    after, until, last = list[int](), list[int](), backward[-1]
    for rank, rows in enumerate(last.rows):
        ends = [last.end(rank, layer) for layer in range(traced.layers)] if last.blocks else []
        after += [*ends, int(rows[-1])]
        waiting = int(update[-1].rows[rank][0]) if update and len(update[-1].rows) > rank else -1
        until += [waiting] * (len(ends) + 1)
    total, layer = (
        weight_elements(traced.sizes, traced.layers),
        weight_elements(traced.sizes, 1) - weight_elements(traced.sizes, 0),
    )
    size = _element_bytes(graph)
    rest = total - layer * traced.layers if last.blocks else total
    pieces = [*([layer] * traced.layers if last.blocks else []), rest] * len(last.rows)
    columns = {"bytes": np.array(pieces) * size, "ranks": number, "phase": BACKWARD}
    at, layout = np.array(until), Layout(traced.tensor, number)
    added = with_new_collectives(graph, "all_reduce", np.array(after), columns, parameters, until=at, layout=layout)
    return added.with_notes(
        [
            f"data_parallel: {len(after)} all-reduces of gradients added, {total * size / 1e6:.1f} MB a rank; assumed: "
            "they run beside the backward pass, as of PyTorch DDP. A synthetic job needs overlap_gradients for that"
        ]
    )


@recipe("job", "pipeline_parallel:4", _NUMBER, Argument("schedule", "order of micro-batches", choices=tuple(SCHEDULES),
        default="1f1b"), _JOB)  # fmt: skip
def pipeline_parallel(number: int, schedule: str = "1f1b", job: str = "") -> WhatIf:
    """Split the layers into NUMBER pipeline stages; the graph becomes that of one stage.

    A stage keeps its share of the layers, and the embedding and the head of the trace, so it stands for the slowest
    one. Micro-batches are those of the trace. Each is sent to the next stage and back. The wait for the other stages,
    (NUMBER - 1) times a micro-batch forward and backward, is one task before the first kernel; an interleaved schedule
    of two chunks halves it, and a zero-bubble schedule leaves a third.

    Not modelled: the order of micro-batches in the graph, stages that differ, and sends that overlap.

    Source: Megatron-LM (arXiv 2104.04473, section 2.2); ZB-H1 (arXiv 2401.10241).

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: it does not divide the layers, or the step is no transformer whose layers
        repeat.
    """

    def change(graph: KernelGraph, traced: TracedJob, parameters: Parameters) -> KernelGraph:
        if traced.layers % number:
            why = "are more than" if number > traced.layers else "do not divide"
            raise InvalidInputError(
                f"{number} stages {why} {traced.layers} layers; {divisors(traced.layers)} stages do"
            )
        if number == 1:
            return graph.with_notes(["pipeline_parallel: one stage, as in the trace"])
        cut = _with_layers(graph, traced, traced.layers // number, "pipeline_parallel", parameters)
        return _with_stages(cut, traced, (number, schedule), parameters)

    words = [schedule] if schedule != "1f1b" or job else []
    return _what_if("pipeline_parallel", number, job, change, *words)


#: Share of the bubble that each schedule leaves: of two chunks, and if weights' gradients fill it.
_BUBBLES: Mapping[str, float] = {"1f1b": 1.0, "interleaved": 0.5, "zero_bubble": 1 / 3}


def _with_stages(graph: KernelGraph, traced: TracedJob, split: tuple[int, str], parameters: Parameters) -> KernelGraph:
    """Return the graph of one stage, with sends after each pass, and a task for the wait for other stages."""
    stages, schedule = split
    runs = [run for run in find_runs(graph, compute_streams(graph), 1) if run.way != OPTIMIZER]
    size = state_elements(traced.sizes) * _element_bytes(graph)
    ends = np.array([int(rows[-1]) for run in runs for rows in run.rows])
    columns = {"bytes": size, "ranks": 2, "phase": graph.tasks.phase[ends]}
    sent = with_new_collectives(graph, "send_recv", ends, columns, parameters)
    tasks, first = sent.tasks, [int(rows[0]) for rows in runs[0].rows]
    passes = traced.micro_batches * traced.steps
    busy = sum(float(tasks.duration_ns[rows].sum()) for run in runs for rows in run.rows[:1]) / passes
    wait = (stages - 1) * busy * _BUBBLES[schedule]
    # The wait is that of the first stage for its last micro-batch, or of the last stage for its first.
    waiting = with_collectives(sent, "send_recv", np.array(first), {"bytes": 0, "ranks": 2, "duration_ns": wait})
    return with_demands(waiting, parameters).with_notes(
        [
            f"pipeline_parallel: {len(ends)} sends of {size / 1e6:.1f} MB added; {passes} micro-batches through "
            f"{stages} stages leave a bubble of {wait / 1e6:.2f} ms ({schedule})"
        ]
    )


@recipe("job", "context_parallel:2", _NUMBER, _JOB)
def context_parallel(number: int, job: str = "") -> WhatIf:
    """Share the tokens of each sequence among NUMBER ranks.

    Every operator computes a share of the tokens; in attention, the queries are shared, and keys and values of all
    tokens are gathered before. An all-gather is added before each attention, and in a backward pass a reduce-scatter.

    Not modelled: ring attention, which hides the exchange, and the imbalance of a causal mask.

    Source: Llama 3 (arXiv 2407.21783, section 3.3.2), which gathers keys and values.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: it does not divide the tokens, or the step is no transformer whose sizes
        are known.
    """

    def change(graph: KernelGraph, traced: TracedJob, parameters: Parameters) -> KernelGraph:
        length = traced.sizes["length"]
        if length % number:
            raise InvalidInputError(
                f"{number} context-parallel ranks do not divide sequences of {length} tokens; {divisors(length)} do"
            )
        after, way = _before_attention(graph)
        edit = Edit("context_parallel", traced, {"length": length // number}, traced.tensor, queries_only=True)
        edited = edited_graph(graph, edit, parameters)
        if number == 1 or not len(after):
            return edited
        sizes = traced.sizes
        moved = 2 * sizes["batch"] * length * sizes["kv_heads"] * sizes["width"] * _element_bytes(graph)
        for kind, rows in (("all_gather", after[~way]), ("reduce_scatter", after[way])):
            columns = {"bytes": moved, "ranks": number, "phase": graph.tasks.phase[rows]}
            edited = with_new_collectives(edited, kind, rows, columns, parameters)
        gathers = f"{int((~way).sum())} all-gathers and {int(way.sum())} reduce-scatters"
        return edited.with_notes([f"context_parallel: {gathers} of {moved / 1e6:.1f} MB added"])

    return _what_if("context_parallel", number, job, change)


def _before_attention(graph: KernelGraph) -> tuple[Ints, Bools]:
    """Return the last product before each attention, and whether it is of a backward pass."""
    calls, products = OperatorCalls(graph), list[int]()
    for rows in compute_streams(graph):
        numbers = graph.tasks.call[rows].tolist()
        kinds = [operator.kind if (operator := calls.operator(number)) else "" for number in numbers]
        last = -1
        for row, kind in zip(rows.tolist(), kinds, strict=True):
            if kind == "matmul":
                last = row
            elif kind in ("attention", "batched_matmul") and last >= 0:
                products.append(last)
                last = -1
    after = np.array(products, dtype=np.int64)
    return after, graph.tasks.phase[after] == BACKWARD


@recipe("job", "expert_parallel:8", _NUMBER, _JOB)
def expert_parallel(number: int, job: str = "") -> WhatIf:
    """Share the experts of each layer among NUMBER ranks.

    All-to-alls of the trace, which carry tokens to experts and back, are re-timed for the new number of ranks. A rank
    has fewer experts and as many tokens for all of them, so its products stay. A step of serving on one rank gets two
    all-to-alls around each layer of experts; each rank serves its own requests, and reads its own experts' weights.

    Not modelled: tokens that are spread unevenly, and other sizes of an expert's products.

    Source: `replay.costs.collectives`.

    Raises
    ------
    InvalidInputError
        The number is below 1. When applied: the step has no all-to-all, or is no transformer whose sizes are known.
    """

    def change(graph: KernelGraph, traced: TracedJob, parameters: Parameters) -> KernelGraph:
        tasks = graph.tasks
        rows = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == COLLECTIVE_KINDS.index("all_to_all"))
        if not rows.any():
            raise InvalidInputError(
                "the step has no all-to-all, so its experts, if any, are on one rank; nobody knows which of its tokens "
                "go where. Possible: tensor_parallel, data_parallel, context_parallel, pipeline_parallel"
            )
        resized, moved = with_exchanges(graph, tasks.bytes, np.where(rows, number, tasks.ranks), parameters)
        return with_demands(resized, parameters).with_notes([f"expert_parallel: {moved} all-to-alls re-timed"])

    return _what_if("expert_parallel", number, job, change, serving=shared_experts)


#: What-ifs that edit the job.
EDITING = (
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "context_parallel",
    "micro_batch",
    "sequence_length",
    "layers",
    "hidden",
    "quantize_weights",
)


def with_job(what_ifs: Sequence[WhatIf], path: str) -> list[WhatIf]:
    """Return what-ifs in which each edit of the job takes the sizes that its trace does not tell from a file.

    Parameters
    ----------
    what_ifs : sequence of WhatIf
        What-ifs, whose names parse to the same what-ifs.
    path : str
        TOML file with a table ``[job]`` (`replay.workloads.read_job`).

    Raises
    ------
    InvalidInputError
        No what-if edits the job, or the file holds none.
    """
    read_job(path)
    changed = []
    for each in what_ifs:
        what_if, words = each, [split_words(step) for step in each.steps]
        named = [_with_path(step, path) for step in words]
        whole = parse_what_if("+".join(what_if_text(*step) for step in named)) if named != words else what_if
        changed.append(
            replace(whole, title=what_if.title, parameters=what_if.parameters) if named != words else what_if
        )
    if all(new is old for new, old in zip(changed, what_ifs, strict=True)):
        raise InvalidInputError(f"job {path!r}: no what-if edits the job ({', '.join(EDITING)}), so it changes nothing")
    return changed


#: Second arguments of edits that have one, by their defaults.
_SECOND: Mapping[str, str] = {"pipeline_parallel": "1f1b", "quantize_weights": "jit_pim"}


def _with_path(step: list[str], path: str) -> list[str]:
    if step[0] not in EDITING:
        return step
    default = [_SECOND[step[0]]] if step[0] in _SECOND and len(step) == 2 else []
    full = 4 if step[0] in _SECOND else 3
    return step if len(step) >= full else [*step, *default, path]
