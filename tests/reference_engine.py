"""The engine's rules once more, slowly and plainly, to hold it to: no heap, no arrays, nothing incremental."""

import math
from dataclasses import dataclass, field

from replay.graph.graph import RESOURCES, EdgeKind, KernelGraph, TaskKind

CU = RESOURCES.index("cu")
#: Compute units that collectives hold at most while they wait.
HELD_BY_WAITING = 0.95


@dataclass
class Run:
    """What a run knows of its tasks."""

    graph: KernelGraph
    left: list[float]  # work
    granted: list[float]
    active: dict[int, list[int]] = field(default_factory=dict)  # by device
    waits: set[int] = field(default_factory=set)  # collectives that wait for their peers
    resident: set[int] = field(default_factory=set)  # kernels whose workgroups all run at once

    def is_active(self, task: int) -> bool:
        return any(task in mine for mine in self.active.values())

    def activate(self, task: int) -> None:
        self.active.setdefault(int(self.graph.tasks.device[task]), []).append(task)


def simulate_plainly(graph: KernelGraph) -> tuple[list[float], list[float]]:
    """Return starts and ends: at every step all that can happen is looked for among all tasks."""
    tasks, n = graph.tasks, len(graph.tasks)
    start, end = [math.nan] * n, [math.nan] * n
    run = Run(graph, tasks.duration_ns.tolist(), [0.0] * n)
    shares = [tasks.device[i] >= 0 and tasks.kind[i] != TaskKind.MARK and run.left[i] > 0 for i in range(n)]
    arrival = [_arrival_mark(graph, i) for i in range(n)]
    now = 0.0
    while any(math.isnan(t) for t in end):
        moved = True
        while moved:  # all that happens at this time
            moved = _resolve(run, shares, start, end)
            ready = [_ready(graph, i, start, end) if math.isnan(end[i]) else None for i in range(n)]
            is_ready = [time is not None and time <= now + 1e-6 for time in ready]
            for i in range(n):
                comes = shares[i] and math.isnan(end[i]) and not is_ready[i] and not run.is_active(i)
                if comes and arrival[i] >= 0 and end[arrival[i]] <= now + 1e-6:
                    run.activate(i)
                    run.waits.add(i)
                    moved = True
            for i in range(n):
                if shares[i] and is_ready[i] and i in run.waits:
                    run.waits.remove(i)
                    moved = True
                elif shares[i] and is_ready[i] and not run.is_active(i):
                    run.activate(i)
                    moved = True
            rates, steps = {}, []
            for mine in run.active.values():
                mine.sort(key=lambda i: -tasks.priority[i])  # stable: behind all of its priority
                of_device, short = _rates(run, mine)
                rates |= of_device
                steps += [_until_change(graph, i, run.left[i], short) / of_device[i] for i in mine if of_device[i] > 0]
                for i in mine:
                    if math.isnan(start[i]) and of_device[i] > 0:
                        start[i], moved = now, True
        later = [time for i, time in enumerate(ready) if time is not None and (i in run.waits or not run.is_active(i))]
        later += [end[mark] for i, mark in enumerate(arrival) if mark >= 0 and math.isnan(end[i])]
        step = min([*steps, *(time - now for time in later if time > now + 1e-6)], default=math.inf)
        assert step < math.inf or not any(math.isnan(t) for t in end), "nothing can happen any more"
        for i, rate in rates.items():
            run.left[i] -= rate * step if rate > 0 else 0.0
        now += step
        for mine in run.active.values():
            for i in [i for i in mine if run.left[i] <= 1e-3]:
                end[i] = now
                mine.remove(i)
    return start, end


def _resolve(run: Run, shares: list[bool], start: list[float], end: list[float]) -> bool:
    """Write the times of tasks that share nothing, as soon as all that they wait for is known; return whether any."""
    resolved, again = False, True
    while again:
        again = False
        for i, is_shared in enumerate(shares):
            if not is_shared and math.isnan(end[i]) and (ready := _ready(run.graph, i, start, end)) is not None:
                start[i], end[i] = ready, ready + run.left[i]
                resolved = again = True
    return resolved


def _arrival_mark(graph: KernelGraph, task: int) -> int:
    """Return the mark at which the rank of a collective arrives, -1 for other tasks."""
    tasks, edges = graph.tasks, graph.edges
    meets = [e for e in range(len(edges)) if edges.kind[e] == EdgeKind.RENDEZVOUS]
    meetings = {edges.source[e] for e in meets if edges.target[e] == task and tasks.kind[task] == TaskKind.COLLECTIVE}
    marks = [int(edges.source[e]) for e in meets if edges.target[e] in meetings]
    return next((mark for mark in marks if tasks.lane[mark] == tasks.lane[task]), -1)


def _ready(graph: KernelGraph, task: int, start: list[float], end: list[float]) -> float | None:
    ready = float(graph.tasks.release_ns[task])
    for e in range(len(graph.edges)):
        if graph.edges.target[e] == task:
            source = int(graph.edges.source[e])
            ready = max(ready, (start if graph.edges.from_start[e] else end)[source] + float(graph.edges.lag_ns[e]))
            if math.isnan((start if graph.edges.from_start[e] else end)[source]):
                return None
    return ready


def _last_wave(graph: KernelGraph, task: int) -> tuple[float, float]:
    """Return with how much of its work left a task is in its last wave, and what that occupies."""
    waves, occupies = float(graph.tasks.waves[task]), float(graph.tasks.occupies[task])
    if waves <= 0:
        return 0.0, occupies
    whole = math.ceil(waves - 1e-9)
    share = waves - whole + 1 if waves > 1 else 1.0
    return float(graph.tasks.duration_ns[task]) / max(whole, 1), occupies * share


def _until_change(graph: KernelGraph, task: int, left: float, short: bool) -> float:
    resident, _ = _last_wave(graph, task)
    return left - resident if short and left > resident + 1e-3 else left


def _dispatch(run: Run, mine: list[int], wants: dict[int, float], runs: dict[int, bool]) -> dict[int, float]:
    """Return the compute units of each task: workgroups that run stay, then in order."""
    if sum(wants.values()) <= 1 + 1e-12:
        return dict(wants)
    got: dict[int, float] = {}
    for i in mine:
        kept = min(run.granted[i], wants[i]) if runs[i] else 0.0
        got[i] = min(kept, _free(run, i, got))
    for i in mine:
        got[i] += min(wants[i] - got[i], _free(run, i, got))
    return got


def _free(run: Run, task: int, got: dict[int, float]) -> float:
    """Return the compute units that a task may take beside what all tasks got."""
    free = max(1.0 - sum(got.values()), 0.0)
    held = sum(units for i, units in got.items() if i in run.waits)
    return min(free, HELD_BY_WAITING - held) if task in run.waits else free


def _cap(run: Run, task: int, got: float, wants: float, *, runs: bool) -> float:
    """Return the rate that the compute units of a task allow."""
    if got >= wants - 1e-12:
        if runs:
            run.resident.add(task)
        return 1.0
    if got <= 1e-12:
        return 0.0
    cap = min(got / max(run.graph.tasks.demand[task, CU], 1e-12), 1.0)
    cost = float(run.graph.tasks.extra_round[task])
    if not runs or cost == 0:
        return cap
    if task in run.resident:
        return 1.0
    return min(cap, 1 / (1 + cost * (math.ceil(wants / got - 1e-9) - 1)))


def _pressed(run: Run, caps: dict[int, float], got: dict[int, float], runs: dict[int, bool]) -> dict[int, float]:
    """Return the caps after the tasks beside each; collectives that wait stop."""
    tasks, result = run.graph.tasks, {}
    pressures = {i: float(tasks.pressure[i]) for i in caps if caps[i] > 0}
    for i in pressures:
        pressures[i] *= run.graph.policy.waiting_pressure if i in run.waits else 1.0
    pushers = [i for i in caps if tasks.pressure[i] > 0 and tasks.sensitivity[i] == 0]
    for i, cap in caps.items():
        cost = float(tasks.extra_round[i])
        if 0 < cap < 1 and cost > 0 and not runs[i] and i not in pushers:
            usable = got[i] + (1 - min(cost, 1)) * sum(got[k] for k in pushers)
            cap = max(cap, min(usable / max(tasks.demand[i, CU], 1e-12), 1))
        beside = sum(pressure for k, pressure in pressures.items() if k != i)
        slowed = 1 / (1 / cap + tasks.sensitivity[i] * beside) if cap > 0 else 0.0
        result[i] = 0.0 if i in run.waits else slowed
    return result


def _deferred(graph: KernelGraph, caps: dict[int, float]) -> dict[int, float]:
    """Return the caps after tasks whose accesses of memory yield to those of others have done so."""
    share, memory = graph.policy.deferred_share, graph.tasks.demand[:, RESOURCES.index("hbm")]
    yielding = [i for i in caps if graph.tasks.defers[i] > 0 and memory[i] > 0]
    if share == 0 or not yielding or len(caps) == 1:
        return caps
    left = max(1 - sum(caps[i] * memory[i] for i in caps if graph.tasks.defers[i] == 0), share)
    for i in sorted(yielding, key=lambda i: caps[i]):
        rest = sum(memory[k] for k in yielding if caps[k] >= caps[i])
        if caps[i] * rest > left:
            return {k: min(caps[k], left / rest) if k in yielding else caps[k] for k in caps}
        left -= caps[i] * memory[i]
        yielding = [k for k in yielding if k != i]
    return caps


def _rates(run: Run, mine: list[int]) -> tuple[dict[int, float], bool]:
    """Return the rates of the tasks of a device, and whether a last wave can change them."""
    graph, tasks = run.graph, run.graph.tasks
    wants, runs = {}, {}
    for i in mine:
        last_ns, last = _last_wave(graph, i)
        runs[i] = run.left[i] <= last_ns + 1e-3
        wants[i] = last if runs[i] else float(tasks.occupies[i])
    got = _dispatch(run, mine, wants, runs)
    caps = {}
    for i in mine:
        run.granted[i] = got[i]
        caps[i] = _cap(run, i, got[i], wants[i], runs=runs[i])
    short = any(cap < 1 for cap in caps.values()) or sum(wants.values()) > 1 + 1e-12
    caps = _deferred(graph, _pressed(run, caps, got, runs))
    rates, level = dict.fromkeys(mine, 0.0), 0.0
    rising = {i for i in mine if caps[i] > 0}
    room = {r: 1.0 for r in range(len(RESOURCES)) if RESOURCES[r] not in ("cu", "power")}
    while rising:
        asked = {r: sum(float(tasks.demand[i, r]) for i in rising) for r in room}
        rise = min([min(caps[i] for i in rising) - level, *(room[r] / asked[r] for r in room if asked[r] > 1e-12)])
        level += max(rise, 0.0)
        room = {r: room[r] - rise * asked[r] for r in room}
        for i in list(rising):
            if caps[i] <= level + 1e-12 or any(room[r] <= 1e-12 and tasks.demand[i, r] > 0 for r in room):
                rates[i] = level
                rising.discard(i)
    return rates, short
