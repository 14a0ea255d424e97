"""The engine's rules once more, slowly and plainly, to hold it to: no heap, no arrays, nothing incremental."""

import math

from replay.graph.graph import RESOURCES, KernelGraph, TaskKind

CU = RESOURCES.index("cu")


def simulate_plainly(graph: KernelGraph) -> tuple[list[float], list[float]]:
    """Return starts and ends: at every step all that can happen is looked for among all tasks."""
    tasks, n = graph.tasks, len(graph.tasks)
    start, end, left = [math.nan] * n, [math.nan] * n, tasks.duration_ns.tolist()
    shares = [tasks.device[i] >= 0 and tasks.kind[i] != TaskKind.MARK and left[i] > 0 for i in range(n)]
    active: dict[int, list[int]] = {}
    granted = [0.0] * n
    now = 0.0
    while any(math.isnan(t) for t in end):
        moved = True
        while moved:  # all that happens at this time
            moved = False
            for i in range(n):
                came = math.isnan(end[i]) and not any(i in each for each in active.values())
                if came and (ready := _ready(graph, i, start, end)) is not None and ready <= now + 1e-6:
                    moved = True
                    if shares[i]:
                        active.setdefault(int(tasks.device[i]), []).append(i)
                    else:
                        start[i], end[i] = ready, ready + left[i]
            rates, steps = {}, []
            for device, mine in active.items():
                mine.sort(key=lambda i: -tasks.priority[i])  # stable: behind all of its priority
                found, short = _rates(graph, mine, left, granted)
                rates |= found
                steps += [_until_change(graph, i, left[i], short) / found[i] for i in mine if found[i] > 0]
                for i in mine:
                    if math.isnan(start[i]) and found[i] > 0:
                        start[i], moved = now, True
                assert device >= 0
        waits = [
            ready - now
            for i in range(n)
            if math.isnan(end[i]) and not any(i in each for each in active.values())
            if (ready := _ready(graph, i, start, end)) is not None
        ]
        step = min([*steps, *waits], default=0.0)
        for i, rate in rates.items():
            left[i] -= rate * step
        now += step
        for mine in active.values():
            for i in [i for i in mine if left[i] <= 1e-3]:
                end[i] = now
                mine.remove(i)
    return start, end


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


def _rates(graph: KernelGraph, mine: list[int], left: list[float], granted: list[float]) -> tuple[dict, bool]:
    tasks = graph.tasks
    wants, runs = {}, {}
    for i in mine:
        resident, last = _last_wave(graph, i)
        runs[i] = left[i] <= resident + 1e-3
        wants[i] = last if runs[i] else float(tasks.occupies[i])
    if sum(wants.values()) <= 1 + 1e-12:
        got = dict(wants)
    else:
        got, pool = {}, 1.0
        for i in mine:
            got[i] = min(granted[i], wants[i], pool) if runs[i] else 0.0
            pool -= got[i]
        for i in mine:
            more = min(wants[i] - got[i], pool)
            got[i], pool = got[i] + more, pool - more
    caps = {}
    for i in mine:
        granted[i] = got[i]
        enough = got[i] >= wants[i] - 1e-12
        caps[i] = 1.0 if enough else 0.0 if got[i] <= 1e-12 else min(got[i] / max(tasks.demand[i, CU], 1e-12), 1.0)
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
    return rates, any(cap < 1 for cap in caps.values()) or sum(wants.values()) > 1 + 1e-12
