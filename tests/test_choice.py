"""The grammar by which tasks are chosen, on a hand-built graph and on the events of a small trace."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given
from hypothesis import strategies as st
from traces import write_trace

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.ingest.pipeline import collect
from profilers.trace.arrays import MISSING
from profilers.trace.kernels import CLASSES
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace, TraceMeta
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph
from replay.from_trace.phases import work_phases
from replay.graph.choice import TaskChoice
from replay.graph.graph import COLLECTIVE_KINDS, COPY_DIRECTIONS, PHASES, KernelGraph, Lane, TaskKind
from replay.what_ifs import check_choices, parse_plan, parse_what_if
from replay.what_ifs.what_if import split_steps, split_words, what_if_text

NOMINAL = load_parameters()
GEMM, COLLECTIVE, COPY_CLASS = (CLASSES.index(name) for name in ("gemm", "collective", "copy"))
#: Name, kind, class, lane, name of the operator, phase.
_ROWS = (
    ("sgemm<64, 2>", TaskKind.KERNEL, GEMM, 0, "aten::mm", "forward"),
    ("sgemm<64, 2>", TaskKind.KERNEL, GEMM, 1, "aten::bmm", "backward"),
    ("ncclAllReduce", TaskKind.COLLECTIVE, COLLECTIVE, 1, "c10d::allreduce_", "backward"),
    ("ncclAllGather", TaskKind.COLLECTIVE, COLLECTIVE, 2, "", ""),
    *((f"Memcpy {direction}", TaskKind.COPY, -1, 0, "aten::copy_", "forward") for direction in COPY_DIRECTIONS),
    ("adam", TaskKind.KERNEL, CLASSES.index("optimizer"), 2, "aten::add_", "optimizer"),
    ("call", TaskKind.HOST, -1, 3, "", ""),
)
_N_COPIES = len(COPY_DIRECTIONS)


def graph_of_every_kind() -> KernelGraph:
    """Return a graph of two ranks: copies in every direction on stream 7 of rank 0, and collectives of two kinds."""
    names = list(dict.fromkeys([row[0] for row in _ROWS] + [row[4] for row in _ROWS if row[4]]))
    kinds = {"ncclAllReduce": "all_reduce", "ncclAllGather": "all_gather"}
    graph = make_graph(
        [100.0] * len(_ROWS),
        name=[names.index(row[0]) for row in _ROWS],
        kind=[row[1] for row in _ROWS],
        class_=[row[2] for row in _ROWS],
        lane=[row[3] for row in _ROWS],
        device=[[0, 0, 1, -1][row[3]] for row in _ROWS],
        collective=[COLLECTIVE_KINDS.index(kinds[row[0]]) if row[0] in kinds else -1 for row in _ROWS],
        launched_by=[names.index(row[4]) if row[4] else -1 for row in _ROWS],
        phase=[PHASES.index(row[5]) if row[5] else -1 for row in _ROWS],
        direction=[COPY_DIRECTIONS.index(row[0].split()[1]) if row[1] == TaskKind.COPY else -1 for row in _ROWS],
    )
    lanes = (Lane(0, 0, 7), Lane(0, 0, 20), Lane(1, 3, 7), Lane(1, None, 0))
    return replace(graph, names=tuple(names), lanes=lanes, devices=((0, 0), (1, 3)))


GRAPH = graph_of_every_kind()
_COPIES = list(range(4, 4 + _N_COPIES))
_ADAM = 4 + _N_COPIES


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("all", [*range(_ADAM + 1)]),
        ("*", [*range(_ADAM + 1)]),
        ("kernels", [0, 1, _ADAM]),
        ("collectives", [2, 3]),
        ("copies", _COPIES),
        ("gemm", [0, 1]),
        ("class=gemm", [0, 1]),
        ("sgemm<64, 2>", [0, 1]),
        ("name=*gemm*", [0, 1]),
        ("operator=aten::mm", [0]),
        ("operator=aten::*mm", [0, 1]),
        ("operator=aten::copy_", _COPIES),
        *((f"copies={direction}", [4 + i]) for i, direction in enumerate(COPY_DIRECTIONS)),
        ("copies=dtoh", [4 + COPY_DIRECTIONS.index("DtoH")]),
        ("collectives=all_gather", [3]),
        ("collectives=AllReduce", [2]),
        ("rank=1", [3, _ADAM]),
        ("device=3", [3, _ADAM]),
        ("stream=7", [0, 3, *_COPIES, _ADAM]),
        ("phase=backward", [1, 2]),
        ("phase=optimizer", [_ADAM]),
        ("gemm,stream=20", [1]),
        ("sgemm<64, 2>, rank=0,phase=forward", [0]),
        ("rank=1,stream=7,collectives", [3]),
        ("*,gemm,rank=0", [0, 1]),
    ],
)
def test_a_task_fits_all_terms(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(TaskChoice(text).rows(GRAPH)).tolist() == rows


def test_what_says_nothing_of_the_kind_stands_for_the_kinds_of_the_what_if() -> None:
    kernels = (TaskKind.KERNEL,)
    assert np.flatnonzero(TaskChoice("rank=0", kinds=kernels).rows(GRAPH)).tolist() == [0, 1]
    assert np.flatnonzero(TaskChoice("copies=DtoH,rank=0", kinds=kernels).rows(GRAPH)).tolist() == [5]
    assert not TaskChoice("copies=DtoH", kinds=kernels, allowed=kernels).rows(GRAPH).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("copy", r"no kernel of the iterations has the class 'copy'; did you mean copies"),
        ("*dtoh*", r"no class or kernel of the trace is called '\*dtoh\*'; did you mean Memcpy DtoH\?"),
        ("gemm<64", r"called 'gemm<64'; did you mean \*gemm<64\*, as in sgemm<64, 2>\?"),
        ("operator=copy_", r"launched a task is called 'copy_'; did you mean \*copy_\*, as in aten::copy_\?"),
        ("operator=aten::addmm", r"no operator that launched a task is called 'aten::addmm'; did you mean aten::add_"),
        ("collectives=broadcast", "has collectives=broadcast; collectives can be all_reduce, all_gather"),
        ("rank=2", "no task of the iterations has rank=2; rank can be 0, 1"),
        ("stream=8", "has stream=8; stream can be 7, 20"),
        ("device=1", "has device=1; device can be 0, 3"),
        (
            "gemm,rank=1",
            r"no task fits all terms of 'gemm,rank=1'; alone they fit: class=gemm \(2 kernels\), rank=1 \(1",
        ),
    ],
)
def test_a_choice_that_fits_nothing_lists_what_there_is(text: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        TaskChoice(text).check([GRAPH])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stram=7", "tasks are not chosen by 'stram'; did you mean stream"),
        ("class=gem", "class cannot be 'gem'; did you mean gemm"),
        ("copies=up", "copies cannot be 'up'"),
        ("phase=warm", "phase cannot be 'warm'; .*forward"),
        ("rank=first", "rank=first: give the number of a rank, as in rank=0"),
        ("rank=-1", "give the number of a rank"),
        ("operator=", "chooses no kernels"),
        ("", "chooses no kernels"),
    ],
)
def test_a_text_that_cannot_be_read_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(SeqPointError, match=message):
        TaskChoice(text)


def test_near_names_that_an_error_offers_choose_tasks() -> None:
    with pytest.raises(NotFoundError, match="did you mean") as error:
        check_choices(parse_what_if("scale_kernels:copy:0.5"), [GRAPH], NOMINAL)
    for offered in str(error.value).partition("did you mean ")[2].rstrip("?").split(", "):
        what_if = parse_what_if(f"scale_kernels:{offered}:0.5")
        check_choices(what_if, [GRAPH], NOMINAL)
        assert (what_if(GRAPH, NOMINAL).tasks.duration_ns == 50).any()


def test_a_trace_that_tells_neither_operators_nor_phases_says_so() -> None:
    untold = GRAPH.with_tasks(launched_by=np.full(len(_ROWS), -1), phase=np.full(len(_ROWS), -1))
    with pytest.raises(NotFoundError, match="phase=forward: the trace does not tell the phases"):
        TaskChoice("phase=forward").check([untold])
    with pytest.raises(NotFoundError, match="the trace does not say which operators launched"):
        TaskChoice("operator=aten::mm").check([untold])


# -- what-ifs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("scale_kernels:copies=DtoH:0.5", [5]),
        ("scale_kernels:copies:0.5", _COPIES),
        ("scale_kernels:all:0.5", [0, 1, 2, 3, _ADAM]),
        ("scale_kernels:*:0.5", [0, 1, 2, 3, _ADAM]),
        ("scale_kernels:stream=7:0.5", [0, 3, _ADAM]),
        ("scale_kernels:operator=aten::copy_:0.5", _COPIES),
        ("scale_kernels:collectives=all_gather:0.5", [3]),
        ("scale_kernels:gemm,phase=backward:0.5", [1]),
        ("swap_kernel:*DtoH*:0.5", [5]),
        ("swap_kernel:copies=HtoD:50ns", [4]),
        ("swap_kernel:all:0.5", [0, 1, _ADAM]),
        ("swap_kernel:collectives=all_reduce:0.5", [2]),
    ],
)
def test_a_what_if_changes_the_chosen_tasks_alone(text: str, rows: list[int]) -> None:
    what_if = parse_what_if(text)
    check_choices(what_if, [GRAPH], NOMINAL)
    assert np.flatnonzero(what_if(GRAPH, NOMINAL).tasks.duration_ns == 50).tolist() == rows
    assert parse_what_if(what_if.name).name == what_if.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swap_kernel:*DtoH*:sgemm<64, 2>", r"'\*DtoH\*' fits 1 copies, and only kernels can be chosen here"),
        ("swap_kernel:copies:1:gemm", "'copies' fits 6 copies, and only kernels"),
        ("fuse:collectives", "'collectives' fits 2 collectives, and only kernels"),
        ("swap_kernel:gemm:*DtoH*", r"'\*DtoH\*' fits 1 copies, and only kernels"),
        ("change_stream:stream=3:new", "stream can be 7, 20"),
        ("partition:collectives=reduce:0.5", "collectives can be all_reduce, all_gather"),
        ("change_priority:phase=forward,rank=1:1", "alone they fit"),
    ],
)
def test_a_what_if_that_chooses_nothing_is_an_error(text: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=f"what-if .*{message}"):
        check_choices(parse_what_if(text), [GRAPH], NOMINAL)


def test_a_step_that_chooses_what_an_earlier_step_removed_is_an_error() -> None:
    lost = parse_what_if("swap_kernel:gemm:adam+scale_kernels:*sgemm*:0.5")
    with pytest.raises(NotFoundError, match=r"after swap_kernel:gemm:adam, which left none"):
        check_choices(lost, [GRAPH], NOMINAL)
    check_choices(parse_what_if("scale_kernels:*sgemm*:0.5+swap_kernel:gemm:adam"), [GRAPH], NOMINAL)
    check_choices(parse_what_if("swap_kernel:gemm:adam+scale_kernels:adam:0.5"), [GRAPH], NOMINAL)


def test_a_plan_takes_choices_and_names_of_earlier_versions() -> None:
    plan = """
        [[alternative]]
        steps = [
          { what_if = "scale_kernels", tasks = "copies=DtoH", factor = 0.5 },
          { what_if = "scale_kernels", class = "gemm", factor = 0.5 },
          { what_if = "swap_kernel", kernel = "operator=aten::bmm", by = 0.5 },
        ]
    """
    (what_if,) = parse_plan(plan, NOMINAL)
    assert what_if.name == "scale_kernels:copies=DtoH:0.5+scale_kernels:gemm:0.5+swap_kernel:operator=aten::bmm:0.5"
    times = what_if(GRAPH, NOMINAL).tasks.duration_ns
    assert times[[0, 1, 4, 5]].tolist() == [50, 25, 100, 50]
    twice = plan.replace('class = "gemm"', 'class = "gemm", tasks = "gemm"')
    with pytest.raises(InvalidInputError, match="scale_kernels has an argument twice"):
        parse_plan(twice, NOMINAL)


@given(st.lists(st.text(alphabet="a:+\\\\*1 =,", max_size=8), min_size=1, max_size=4))
def test_arguments_are_read_back_as_they_were_written(arguments: list[str]) -> None:
    assert split_words(what_if_text("name", *arguments)) == ["name", *arguments]
    assert split_steps(what_if_text("name", *arguments) + "+b")[-1] == "b"


# -- traces -----------------------------------------------------------------------------------------------------------


def test_a_traced_task_knows_its_operator(tmp_path: Path) -> None:
    graph = build_graph(collect([write_trace(tmp_path / "t.json")]), 1, parameters=NOMINAL)
    tasks = graph.tasks
    rows = TaskChoice("operator=aten::mm").rows(graph)
    assert rows.any() and set(tasks.class_[rows].tolist()) == {GEMM}


def test_phases_are_those_of_the_calls_that_launch() -> None:
    """Thread 1: forward op 0-10, optimizer 100-150. Thread 2: backward op 20-60. An annotation covers 160-170."""
    ops = {
        "id": [1, 2, 3, 4],
        "rank": [0] * 4,
        "name": ["aten::linear", "aten::mm", "AddmmBackward0", "Optimizer.step#Adam.step"],
        "start_ns": [0, 2, 20, 100],
        "dur_ns": [10, 4, 40, 50],
        "thread": [1, 1, 2, 1],
        "sequence_number": [5, None, 5, None],
        "forward_thread": [0, None, 1, None],
    }
    times = [3, 5, 12, 30, 45, 70, 110, 140, 155, 165, 200]
    launches = {
        "id": [*range(11, 11 + len(times))],
        "rank": [0] * len(times),
        "name": ["launch"] * len(times),
        "start_ns": times,
        "dur_ns": [1] * len(times),
        "thread": [2 if 20 <= time < 100 else 1 for time in times],
    }
    ranges = {"id": [9], "rank": [0], "name": ["## Forward pass ##"], "start_ns": [160], "dur_ns": [10], "thread": [1]}
    tables = {"ops": ops, "launches": launches, "ranges": ranges}
    trace = Trace(TraceMeta("kineto"), {kind: make_table(kind, columns) for kind, columns in tables.items()})
    phases = work_phases(trace, np.array(launches["id"]), np.full(len(times), MISSING))
    forward, backward, optimizer = range(3)
    unknown = -1  # between two phases: after the forward operator, after the backward one, after the optimizer, the end
    expected = [forward, forward, unknown, backward, backward, unknown, optimizer, optimizer, unknown, forward, unknown]
    assert phases.tolist() == expected
    between = work_phases(trace, np.array([11, 12, 14, 15, 16]), np.full(5, MISSING))
    assert between.tolist() == [forward, forward, backward, backward, unknown]
    filled = work_phases(trace, np.array([14, 15]), np.array([MISSING, MISSING]))
    assert filled.tolist() == [backward, backward]
