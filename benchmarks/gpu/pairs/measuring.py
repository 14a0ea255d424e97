"""Steps of part h: runs of a group timed by turns, each run traced, and recordings of one run by each profiler setting.

A run has three measures, ns. `step` is the time of a step as `clock.laps` takes it. `host` is what the host takes to
issue a step while nothing holds it up: a few steps at once, from an idle device. `part` is the time of a part of the
step by itself, for groups that name one.
"""

import gzip
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.clock import laps, require, scratch, synchronize
from benchmarks.gpu.pairs.groups import Change, Group, Run
from benchmarks.gpu.pairs.loops import Step as Loop
from benchmarks.gpu.pairs.loops import apply
from benchmarks.gpu.step import Machine, Row, Step, Tables
from benchmarks.gpu.tracing import RECORDINGS, Marked, record

__all__ = ["group_steps", "memory_step", "recording_steps", "trace_steps"]

_SEED = 24
#: Steps before any is timed, turns of each run, and steps of a turn: as many as last so long, within bounds.
_WARM, _TURNS, _LEAST, _MOST = 3, 3, 3, 24
_TURN_NS = {"full": 250_000_000, "cpu": 250_000_000, "tiny": 20_000_000}
#: Steps that are issued at once for the host's time, and how often.
_ISSUED, _ISSUES = 2, 5
#: Iterations of a trace, and seconds that a trace takes beyond making its run.
_TRACED, _TRACE_SECONDS = 2, 1.2
#: The group whose run every setting of the profiler records.
_RECORDED = "recording"


def group_steps(facts: Mapping[str, Any], groups: Sequence[Group], size: str) -> list[Step]:
    """Return a step for each group, which times its runs by turns."""
    return [
        Step(f"h/time/{group.name}", "h", round(sum(run.seconds + 1.0 for run in group.runs), 3),
             partial(_timed, facts, group, _TURN_NS[size]), _shared_needs(group))
        for group in groups
    ]  # fmt: skip


def trace_steps(facts: Mapping[str, Any], groups: Sequence[Group]) -> list[Step]:
    """Return a step for each run, which traces it; a run of several groups is traced once."""
    runs = {run.name: run for group in groups for run in group.runs}
    return [
        Step(f"h/trace/{run.name}", "h", round(run.seconds + _TRACE_SECONDS, 3), partial(_traced, facts, run, "shapes"),
             run.needs | {"profiler"})
        for run in runs.values()
    ]  # fmt: skip


def recording_steps(facts: Mapping[str, Any], groups: Sequence[Group]) -> list[Step]:
    """Return the steps that record one run by each setting of the profiler: how much a recording slows the host."""
    run = _recorded_run(groups)
    return [
        Step(f"h/recording/{how}", "h", run.seconds + _TRACE_SECONDS, partial(_recorded, facts, run, how),
             run.needs | {"profiler"})
        for how in RECORDINGS
    ]  # fmt: skip


def memory_step(facts: Mapping[str, Any], groups: Sequence[Group]) -> Step:
    """Return the step that writes what one step allocates, as PyTorch's snapshot of its allocator in JSON."""
    run = _recorded_run(groups)
    return Step("h/memory", "h", run.seconds + 1.0, partial(_remembered, facts, run), frozenset({"memory_history"}))


def _recorded_run(groups: Sequence[Group]) -> Run:
    return next(group.runs[0] for group in groups if group.name == _RECORDED)


def _shared_needs(group: Group) -> frozenset[str]:
    """Return the features without which no change of a group can be recorded."""
    needs = {run.name: run.needs for run in group.runs}
    of_changes = [needs[change.before] | needs[change.after] for change in group.changes]
    return frozenset.intersection(*of_changes) if of_changes else frozenset().union(*needs.values())


def _timed(facts: Mapping[str, Any], group: Group, turn_ns: int, machine: Machine, _files: Path) -> Tables:
    """Time the runs of a group by turns, and name the pairs among them."""
    runs = [run for run in group.runs if run.needs <= machine.features]
    require(facts.get("memory_bytes"), sum(run.need_bytes for run in runs), f"the group {group.name}")
    rows: list[dict[str, Any]] = []
    with scratch(machine.device, _SEED), ExitStack() as made:
        loops = [(run, made.enter_context(_made(run, machine.device))) for run in runs]
        for turn in range(_TURNS):
            for run, loop in loops:
                rows += [_row(group, run, turn, *each) for each in _turn(group, run, loop, machine.device, turn_ns)]
        del loops
    changes = [change for change in group.changes if {change.before, change.after} <= {run.name for run in runs}]
    return {"runs": rows, "pairs": [_pair(group, change, rows) for change in changes]}


@contextmanager
def _made(run: Run, device: str) -> Iterator[Loop]:
    """Yield the step of a run, warm; what it holds is let go at the end."""
    with apply(run.setting):
        loop = run.make(run.setting, device)
        for number in range(_WARM):
            loop(number)
    synchronize(device)
    yield loop


def _turn(group: Group, run: Run, loop: Loop, device: str, turn_ns: int) -> list[tuple[str, float]]:
    """Return the measures of one turn of a run, each with its time in ns."""
    with apply(run.setting):
        measured: list[tuple[str, float]] = [("host", _issued_ns(loop, device)) for _ in range(_ISSUES)]
        (single,) = laps(device, loop, 1)
        count = max(_LEAST, min(_MOST, turn_ns // max(single, 1)))
        measured += [("step", each) for each in laps(device, loop, count)]
        if group.part is not None:
            measured += [("part", each) for each in laps(device, group.part(run, device), _MOST)]
    return measured


def _issued_ns(loop: Loop, device: str) -> int:
    """Return what the host takes to issue a step, from an idle device."""
    synchronize(device)
    begin = time.perf_counter_ns()
    for number in range(_ISSUED):
        loop(number)
    issued = time.perf_counter_ns() - begin
    synchronize(device)
    return max(1, issued // _ISSUED)


def _row(group: Group, run: Run, turn: int, measure: str, duration_ns: float) -> dict[str, Any]:
    return {
        "group": group.name, "run": run.name, "dtype": run.setting.dtype, "sequence_length": run.sequence_length,
        "batch": run.batch, "measure": measure, "turn": turn, "duration_ns": round(duration_ns),
    }  # fmt: skip


def _pair(group: Group, change: Change, rows: Sequence[Row]) -> Row:
    """Return the row of a pair; its what-if says how much the host or a part was slowed, as measured."""
    factors = {
        measure: _median(rows, change.after, measure) / _median(rows, change.before, measure)
        for measure in ("host", "part")
        if f"{{{measure}}}" in change.what_if
    }
    text = change.what_if
    for measure, factor in factors.items():
        text = text.replace(f"{{{measure}}}", f"{factor:.4g}")
    return {"group": group.name, "before": change.before, "after": change.after, "what_if": text}


def _median(rows: Sequence[Row], run: str, measure: str) -> float:
    return median(row["duration_ns"] for row in rows if row["run"] == run and row["measure"] == measure)


def _traced(facts: Mapping[str, Any], run: Run, how: str, machine: Machine, files: Path) -> Tables:
    """Trace some steps of a run by one setting of the profiler."""
    require(facts.get("memory_bytes"), run.need_bytes, run.name)
    with scratch(machine.device, _SEED), _made(run, machine.device) as loop, apply(run.setting):
        marked = [Marked(i, partial(loop, i), run.sequence_length, run.batch) for i in range(_TRACED)]
        record(machine.device, files, f"pair_{run.name}", marked, how)
        del marked
    return {}


def _recorded(facts: Mapping[str, Any], run: Run, how: str, machine: Machine, files: Path) -> Tables:
    """Trace a run by one setting of the profiler; the pair is the run without a profiler, and this trace."""
    _traced(facts, replace(run, name=f"{run.name}_{how}"), how, machine, files)
    return {"pairs": [{"group": _RECORDED, "before": run.name, "after": f"{run.name}_{how}", "what_if": "recording"}]}


def _remembered(facts: Mapping[str, Any], run: Run, machine: Machine, files: Path) -> Tables:
    """Write the history of the allocator in one step."""
    require(facts.get("memory_bytes"), run.need_bytes, run.name)
    path = files / "traces" / f"pair_{run.name}.memory.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch(machine.device, _SEED), _made(run, machine.device) as loop:
        torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
        try:
            loop(0)
            synchronize(machine.device)
            snapshot = torch.cuda.memory._snapshot()
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        json.dump(snapshot, stream, default=str)
    return {}
