"""Run the plan on a virtual device and write its tables, as a recording on a GPU is written."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.gpu.step import TABLES, Machine, Member, Row
from benchmarks.gpu.virtual.device import VirtualDevice
from benchmarks.gpu.virtual.machine import VirtualMachine
from benchmarks.gpu.virtual.plan import Scenario, plan
from benchmarks.gpu.work import Work
from profilers.atomic import write_text, written_whole

__all__ = ["record"]

_REPETITIONS = 3
#: By which everything takes longer in the second take.
_DRIFT = (0.0, 0.01)
_TYPES = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}


def record(device: VirtualDevice, folder: Path, *, scenarios: int | None = None, seed: int = 0) -> int:
    """Write a recording of two takes; return how many scenarios it has.

    Parameters
    ----------
    device : VirtualDevice
    folder : Path
        It may exist; its tables are replaced.
    scenarios : int, optional
        At most so many, the first of the plan.
    seed : int, optional
        Of the noise of the first take; that of the second follows.
    """
    machine = VirtualMachine(device, seed=seed)
    chosen = list(islice(plan(machine, device.sms), scenarios))
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Row]] = {"works": [], "alone": [], "together": []}
    takes = []
    for take, drift in enumerate(_DRIFT):
        machine.again(seed + take, drift)
        for name, found in _take(machine, chosen).items():
            rows[name] += [{"take": take, **row} for row in found]
        takes.append(_entry(machine, take, seed + take, drift))
    for name, found in rows.items():
        _write(folder / f"{name}.parquet", name, found)
    write_text(folder / "environment.json", json.dumps(takes, indent=1) + "\n")
    return len(chosen)


def _take(machine: Machine, chosen: Sequence[Scenario]) -> dict[str, list[Row]]:
    """Return the rows of every table, once through the plan."""
    members = dict.fromkeys(_as_alone(m) for s in chosen for m in s.members)
    members |= dict.fromkeys(Member(m.work) for m in list(members))
    works = dict.fromkeys(m.work for m in members)
    return {
        "works": [_work(machine, work) for work in works],
        "alone": [row for member in members for row in _alone(machine, member)],
        "together": [row for scenario in chosen for row in _together(machine, scenario)],
    }


def _as_alone(member: Member) -> Member:
    return Member(member.work, member.launches, units=member.units)


def _work(machine: Machine, work: Work) -> Row:
    return {**work.row(), **machine.kernel_of(work)}


def _alone(machine: Machine, member: Member) -> Iterator[Row]:
    for repetition, duration_ns in enumerate(machine.alone(member, _REPETITIONS)):
        yield {
            "part": "a",
            "work": member.work.name,
            "units": member.units or None,
            "repetition": repetition,
            "launches": member.launches,
            "duration_ns": duration_ns,
        }


def _together(machine: Machine, scenario: Scenario) -> Iterator[Row]:
    for repetition, times in enumerate(machine.together(scenario.members, _REPETITIONS)):
        for number, (member, (start_ns, end_ns)) in enumerate(zip(scenario.members, times, strict=True)):
            yield {
                "part": scenario.part,
                "group": scenario.group,
                "scenario": f"{scenario.group}/{scenario.policy}",
                "policy": scenario.policy,
                "repetition": repetition,
                "member": number,
                "work": member.work.name,
                "launches": member.launches,
                "priority": member.priority,
                "units": member.units or None,
                "lag_ns": member.lag_ns,
                "start_ns": start_ns,
                "end_ns": end_ns,
            }


def _entry(machine: VirtualMachine, take: int, seed: int, drift: float) -> dict[str, Any]:
    return {
        "take": take,
        "device": machine.facts(),
        "plan": {"size": "virtual", "seed": 0},
        "sessions": [{"parts": "bc", "state_before": machine.state(), "state_after": machine.state()}],
        "state_before": machine.state(),
        "state_after": machine.state(),
        "note": "simulated; nothing here was measured",
        "seed": seed,
        "drift": drift,
    }


def _write(path: Path, table: str, rows: Sequence[Row]) -> None:
    fields = [pa.field("take", pa.int64()), *(pa.field(name, _TYPES[kind]) for name, kind in TABLES[table].items())]
    columns = pa.Table.from_pylist(list(rows), schema=pa.schema(fields))
    with written_whole(path) as file:
        pq.write_table(columns, file, compression="zstd")
