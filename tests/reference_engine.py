"""The engine's rules once more, slowly and plainly, to hold it to: every compute unit by itself, with whole workgroups.

There is no heap, no class of units and no array. Interleaving, partitions, footprints and named links are left out.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise

from replay.graph.graph import RESOURCES, EdgeKind, KernelGraph, TaskKind

CU, HBM, L2, POWER = (RESOURCES.index(name) for name in ("cu", "hbm", "l2", "power"))
FILLED = [RESOURCES.index(name) for name in ("l2", "hbm", "link", "dma")]
#: Share of the compute units that collectives hold at most while they wait.
HELD_BY_WAITING = 0.95
#: Work is done if this is left of it, in ns.
DONE_NS = 1e-3
LIMITS = ("unit_threads", "unit_registers", "unit_shared", "unit_slots")


class UndecidedError(Exception):
    """The rules for shares of units and those for whole units differ, or rounding decides."""


@dataclass(eq=False)
class Workgroup:
    """A workgroup on a unit; that of a task out of step has always all of its work left."""

    task: int
    left: float = 1.0
    rate: float = 0.0


@dataclass(eq=False)
class Unit:
    """A compute unit."""

    held: list[Workgroup] = field(default_factory=list)
    freed: int = 0  # workgroups that ended at this time

    def of(self, task: int) -> list[Workgroup]:
        return [group for group in self.held if group.task == task]

    def remove(self, groups: list[Workgroup]) -> None:
        self.held = [group for group in self.held if group not in groups]
        self.freed += len(groups)

    def content(self) -> list[tuple[int, float]]:
        return sorted((group.task, round(group.left, 5)) for group in self.held)


class Row:
    """An active task."""

    def __init__(self, graph: KernelGraph, task: int, n_units: int) -> None:
        tasks = graph.tasks
        self.task, self.left_ns = task, float(tasks.duration_ns[task])
        self.needs = [float(getattr(tasks, limit)[task]) for limit in LIMITS]
        self.per_unit = max(math.floor((1 + 1e-9) / max(self.needs)), 1)
        self.occupied = max(float(tasks.occupies[task]), float(tasks.demand[task, CU]))
        self.in_flight = whole(self.occupied * self.per_unit * n_units)
        self.in_rounds, self.stays = bool(tasks.in_rounds[task]) and self.in_flight > 0, bool(tasks.stays[task])
        self.compute = float(tasks.unit_compute[task])
        self.alone = self.compute * max(math.ceil(self.in_flight / n_units - 1e-9), 1)  # asked of its fullest unit
        self.wave_ns, self.last_wave, self.to_place = 0.0, self.in_flight, self.in_flight
        waves = float(tasks.waves[task])
        if waves > 0:
            rounds, last = max(math.ceil(waves - 1e-9), 1), 1.0
            if waves > 1:
                self.to_place = whole(self.in_flight * waves)
                self.last_wave = whole(self.in_flight * (waves - rounds + 1))
            if self.in_rounds and self.compute > 0:
                last = longer(self.compute * max(math.ceil(self.last_wave / n_units - 1e-9), 1), self.alone)
            self.wave_ns = self.left_ns / (rounds - 1 + last)
        self.priority = int(tasks.priority[task])
        self.waits = self.is_placed = self.has_waited = self.has_started = self.is_let_in = False
        self.rate = self.cap = self.placed_rate = 0.0

    @property
    def knows_left(self) -> bool:
        """Whether the row knows the work left, and not the workgroups."""
        return not (self.in_rounds and self.is_placed)

    @property
    def wanted(self) -> int:
        """Workgroups of a task out of step on units if there is room."""
        return self.last_wave if self.left_ns <= self.wave_ns else self.in_flight


def longer(asked: float, alone: float) -> float:
    """Return the time of a workgroup on a unit of which so much arithmetic is asked, over its time alone."""
    return ((1 + asked**1.5) / (1 + alone**1.5)) ** (1 / 1.5)


def whole(number: float) -> int:
    if abs(number - round(number)) > 1e-6:
        raise UndecidedError(f"{number} is not whole")
    return round(number)


class Device:
    """The compute units and the active tasks of a device."""

    def __init__(self, graph: KernelGraph, n_units: int) -> None:
        self.graph, self.tasks = graph, graph.tasks
        self.units = [Unit() for _ in range(n_units)]
        self.rows: list[Row] = []
        self.updated_ns, self.next_ns = 0.0, math.inf
        self.is_changed = False

    def activate(self, task: int, now: float, *, waits: bool) -> None:
        self.progress(now)
        row = Row(self.graph, task, len(self.units))
        row.waits = waits
        self.rows.append(row)
        self.rows.sort(key=lambda row: -row.priority)  # stable: behind all of its priority

    def running(self, row: Row) -> int:
        return sum(len(unit.of(row.task)) for unit in self.units)

    def progress(self, now: float) -> None:
        """Take off the work done until `now`, and end the workgroups in rounds that are done."""
        elapsed, self.updated_ns, self.is_changed = now - self.updated_ns, now, True
        if elapsed <= 0:
            return
        for row in self.rows:
            if row.knows_left:
                row.left_ns -= elapsed * row.rate
                if row.wave_ns < row.left_ns <= row.wave_ns + DONE_NS:
                    row.left_ns = row.wave_ns
        for unit in self.units:
            for group in unit.held:
                group.left -= elapsed * group.rate
            unit.freed = 0
            unit.remove([group for group in unit.held if group.rate > 0 and group.left <= DONE_NS * group.rate])
        for row in self.rows:
            left = sorted(group.left for unit in self.units for group in unit.of(row.task))
            if any(1e-5 < b - a <= 1.1e-3 for a, b in pairwise(left)):
                raise UndecidedError("the engine joins workgroups whose work left differs by a thousandth")

    def end_tasks(self, now: float) -> list[int]:
        """Return the tasks that are done, and take them off their units."""
        self.progress(now)
        done = [row for row in self.rows if self._is_done(row)]
        for row in done:
            self.rows.remove(row)
            for unit in self.units:
                unit.remove(unit.of(row.task))
        return [row.task for row in done]

    def _is_done(self, row: Row) -> bool:
        return row.left_ns <= DONE_NS if row.knows_left else self.running(row) + row.to_place == 0

    # Placing.

    def _room(self, unit: Unit) -> list[float]:
        return [1 - sum(float(getattr(self.tasks, limit)[g.task]) for g in unit.held) for limit in LIMITS]

    def _choose(self, task: int, rank: dict[Unit, int], counts: dict[Unit, int]) -> Unit:
        """Return the unit with the least rank, then with most room, then with least of the task, then of work."""

        def order(unit: Unit) -> tuple[float, ...]:
            taken = math.floor((1 - min(self._room(unit))) * 4096 + 0.5)
            work = sum(float(self.tasks.duration_ns[group.task]) * group.left for group in unit.held)
            return rank[unit], taken, len(unit.of(task)), work

        orders = {unit: order(unit) for unit in rank}
        best = min(orders, key=orders.__getitem__)
        for unit, other in orders.items():
            is_equal = other[:3] == orders[best][:3] and abs(other[3] - orders[best][3]) <= 1e-5 * other[3]
            is_twin = unit.content() == best.content() and counts[unit] == counts[best] and unit.freed == best.freed
            if is_equal and not is_twin:
                raise UndecidedError("units are equal but for what they hold")
        return best

    def _place(self, row: Row, wanted: int, *, has_waited: bool) -> int:
        """Place up to `wanted` workgroups on units; return how many found room."""
        fits = dict.fromkeys(self.units, row.per_unit)
        for unit in self.units if not row.is_let_in else ():
            room = zip(self._room(unit), row.needs, strict=True)
            fits[unit] = max(math.floor(min((free + 1e-9) / need for free, need in room)), 0)
        turns, placed = dict.fromkeys(self.units, 0), 0
        while placed < wanted and (units := [unit for unit in self.units if fits[unit] > 0]):
            counts = {u: max(math.ceil(fits[u] / max(u.freed, 1)), 1) if has_waited else 1 for u in units}
            unit = self._choose(row.task, {u: turns[u] if has_waited else -fits[u] for u in units}, counts)
            if counts[unit] > wanted - placed:
                raise UndecidedError("the engine fills part of a unit")
            unit.held += [Workgroup(row.task) for _ in range(counts[unit])]
            turns[unit] += 1
            fits[unit] -= fits[unit] if self.tasks.spreads[row.task] and not has_waited else counts[unit]
            placed += counts[unit]
        return placed

    def _take(self, row: Row, wanted: int) -> int:
        """Place workgroups of an active task; return how many found no room."""
        asked = wanted
        if row.waits:
            held = sum(self.running(other) / other.per_unit for other in self.rows if other.waits)
            free = (HELD_BY_WAITING * len(self.units) - held) * row.per_unit
            asked = wanted if free >= wanted - 1e-6 else whole(max(free, 0.0))
        placed = self._place(row, asked, has_waited=row.has_waited and not row.is_let_in)
        row.to_place -= placed if row.in_rounds else 0
        row.has_waited |= placed < asked
        return wanted - placed

    def _place_running(self, row: Row) -> None:
        """Place a task that had the device for itself so far, as far as it has come."""
        if not row.in_rounds:
            self._place(row, row.wanted, has_waited=False)
            return
        wave_ns = row.wave_ns or float(self.tasks.duration_ns[row.task])
        begun = (float(self.tasks.duration_ns[row.task]) - row.left_ns) / wave_ns
        rounds = math.floor(begun + 1e-9)
        row.to_place = max(row.to_place - rounds * row.in_flight, 0)
        row.to_place -= self._place(row, min(row.in_flight, row.to_place), has_waited=False)
        done_ns = (begun - rounds) * wave_ns
        for group in (group for unit in self.units for group in unit.of(row.task)):
            group.left = 1 - done_ns / min(wave_ns, done_ns + row.left_ns)

    def _thin_out(self, row: Row, kept: float) -> None:
        """Keep a share of the workgroups: of units that hold the same, as many keep one more as is needed."""
        alike: dict[str, list[Unit]] = {}
        for unit in self.units:
            alike.setdefault(str(unit.content()), []).append(unit)
        for units in alike.values():
            mine = len(units[0].of(row.task))
            staying = math.floor(mine * kept + 1e-9)
            more = whole((mine * kept - staying) * len(units))
            for k, unit in enumerate(units):
                unit.remove(unit.of(row.task)[staying + (k < more) :])

    def _dispatch(self) -> bool:
        """Place the workgroups that wait for room, in order; return whether some find none."""
        if not any(row.is_placed for row in self.rows):
            self.units = [Unit() for _ in self.units]
        for row in self.rows:
            if not row.is_placed and row.has_started:
                self._place_running(row)
        is_short = False
        for k, row in enumerate(self.rows):
            row.is_placed = True
            running = self.running(row)
            if not row.in_rounds and not row.stays and running > row.wanted:
                self._thin_out(row, row.wanted / running)
            missing = row.to_place if row.in_rounds else row.wanted - self.running(row)
            for other in self.rows[k + 1 :] if missing > 0 else ():
                moves = not other.in_rounds and not other.stays and other.left_ns > other.wave_ns
                for unit in self.units if other.priority < row.priority and moves else ():
                    unit.remove(unit.of(other.task))
            is_short |= missing > 0 and self._take(row, missing) > 0
        return is_short

    # Sharing.

    def share(self, now: float) -> None:
        """Write the rates of all tasks and workgroups, and when they next change."""
        self.is_changed, is_short = False, False
        if len(self.rows) == 1 and not self.rows[0].is_placed:
            self.rows[0].rate = 0.0 if self.rows[0].waits else 1.0
        elif self.rows:
            is_short = self._dispatch()
            for row in self.rows:
                row.cap = row.placed_rate = self._placed_rate(row)
                row.cap *= not row.waits
            self._slow()
            self._defer()
            self._fill()
            self._throttle()
            for row in self.rows:
                for unit in self.units:
                    slowed = row.rate / row.placed_rate if row.placed_rate > 0 else 0.0
                    for group in unit.of(row.task):
                        time_ns = row.wave_ns or float(self.tasks.duration_ns[row.task])
                        group.rate = slowed / self._crowding(row, unit) / time_ns if row.in_rounds else 0.0
        steps = [group.left / group.rate for unit in self.units for group in unit.held if group.rate > 0]
        for row in self.rows:
            if row.knows_left and row.rate > 0:
                in_last = row.left_ns <= row.wave_ns
                steps.append((row.left_ns - (row.wave_ns if is_short and not in_last else 0.0)) / row.rate)
            elif not row.knows_left and self._is_done(row):
                steps.append(0.0)
        self.next_ns = now + min(steps, default=math.inf)

    def _crowding(self, row: Row, unit: Unit) -> float:
        """Return the time of a workgroup on its unit over its time alone."""
        tasks, crowd = self.tasks, max(1.0, *(1 - room for room in self._room(unit)))
        if row.compute > 0:
            threads = {g: float(tasks.unit_threads[g.task]) for g in unit.held}
            spinning = sum(share * float(tasks.spins[g.task]) for g, share in threads.items()) / sum(threads.values())
            asked = sum(float(tasks.unit_compute[group.task]) for group in unit.held)
            asked += self.graph.policy.spin_weight * spinning
            slowed = longer(asked if row.in_rounds else max(asked, row.alone), row.alone)
            crowd = max(crowd, slowed) if crowd > 1 else slowed
        if tasks.unit_bandwidth[row.task] > 0:
            crowd = max(crowd, sum(float(tasks.unit_bandwidth[group.task]) for group in unit.held))
        return crowd

    def _placed_rate(self, row: Row) -> float:
        """Return the rate that the workgroups on units allow."""
        if row.in_flight == 0:
            return 1.0
        bandwidth, spreads = float(self.tasks.unit_bandwidth[row.task]), bool(self.tasks.spreads[row.task])
        at_work = 0.0
        for unit in (unit for unit in self.units if unit.of(row.task)):
            is_link = spreads and bandwidth > 0
            at_work += 1 / bandwidth if is_link else len(unit.of(row.task)) / self._crowding(row, unit)
        if row.in_rounds:
            return min(at_work / row.in_flight, 1.0)
        if self.running(row) >= row.wanted or spreads:
            return min(at_work / row.wanted, 1.0)
        needed = max(float(self.tasks.demand[row.task, CU]), 1e-12)
        return min(at_work / row.per_unit / len(self.units) / needed, 1.0)

    def _slow(self) -> None:
        """Lower the caps by the pressure of others and by the latency of memory under load."""
        tasks, press = self.tasks, {}
        for row in self.rows:
            placed = min(self.running(row) / row.in_flight, 1.0) if row.in_flight else 1.0
            weight = self.graph.policy.waiting_pressure if row.waits else float(row.cap > 0)
            press[row] = float(tasks.pressure[row.task]) * placed * weight

        loads = [row for row in self.rows if row.cap > 0 and tasks.demand[row.task, [HBM, L2]].sum() > 0]
        is_felt = sum(press.values()) > 0 and tasks.sensitivity.any()
        if len(loads) <= 1 and not is_felt:
            return

        def slowed(row: Row, latency: float) -> float:
            part = float(tasks.memory_part[row.task])
            alone = float(tasks.demand[row.task, HBM] ** 2 + tasks.demand[row.task, L2] ** 2)
            longer = latency * math.sqrt(1 - min(alone, 0.97**2))
            others = sum(press.values()) - press[row]
            return float((1 - part + part * longer**3) ** (1 / 3) + others * tasks.sensitivity[row.task])

        low, high = 1.0, 4 / math.sqrt(1 - 0.97**2)
        for _ in range(60):
            latency = (low + high) / 2
            rates = {row: row.cap / slowed(row, latency) for row in self.rows}
            # A collective draws while it transfers; its threads wait in a loop then.
            rates = {row: rate * min(float(tasks.spins[row.task]) or 1, 1) for row, rate in rates.items()}
            load = sum(
                sum(rate * float(tasks.demand[row.task, r]) for row, rate in rates.items()) ** 2 for r in (HBM, L2)
            )
            low, high = (latency, high) if load > 1 - latency**-2 else (low, latency)
        for row in self.rows:
            row.cap = min(row.cap / slowed(row, low), 1.0)

    def _defer(self) -> None:
        """Lower the caps of tasks whose accesses of memory yield to those of others."""
        share, memory = self.graph.policy.deferred_share, self.tasks.demand[:, HBM]
        yields = [row for row in self.rows if self.tasks.defers[row.task] > 0]
        left = max(1 - sum(row.cap * memory[row.task] for row in self.rows if row not in yields), share)
        yields = sorted((row for row in yields if memory[row.task] > 0 and share > 0), key=lambda row: row.cap)
        for k, row in enumerate(yields):
            rest = float(sum(memory[other.task] for other in yields[k:]))
            row.cap = min(row.cap, left / rest)
            left -= row.cap * memory[row.task]

    def _fill(self) -> None:
        """Raise all rates together; each stops at its cap, or once a resource that it demands is full."""
        demand, level, rising = self.tasks.demand, 0.0, {row for row in self.rows if row.cap > 0}
        room = dict.fromkeys(FILLED, 1.0)
        for row in self.rows:
            row.rate = 0.0
        while rising:
            asked = {r: sum(float(demand[row.task, r]) for row in rising) for r in room}
            rise = min(
                [min(row.cap for row in rising) - level, *(room[r] / asked[r] for r in room if asked[r] > 1e-12)]
            )
            level += max(rise, 0.0)
            room = {r: room[r] - rise * asked[r] for r in room}
            full = [r for r in room if room[r] <= 1e-12]
            for row in [row for row in rising if row.cap <= level + 1e-12 or demand[row.task, full].any()]:
                row.rate = min(level, row.cap)
                rising.remove(row)

    def _throttle(self) -> None:
        """Lower the clock if the tasks draw more power than the device may."""
        power = sum(float(self.tasks.demand[row.task, POWER]) * row.rate for row in self.rows)
        if power <= 1 + 1e-12:
            return
        clock = power ** (-1 / self.graph.policy.power_exponent)
        for row in self.rows:
            needed = float(self.tasks.demand[row.task, CU]) * row.per_unit * len(self.units)
            if needed > 0:
                row.cap = min(row.cap, clock * max(self.running(row) / needed, row.cap))
        self._fill()


def simulate_plainly(graph: KernelGraph, n_units: int) -> tuple[list[float], list[float]]:
    """Return starts and ends: at every step all that can happen is looked for among all tasks."""
    tasks, n = graph.tasks, len(graph.tasks)
    start, end = [math.nan] * n, [math.nan] * n
    is_shared = [tasks.device[i] >= 0 and tasks.kind[i] != TaskKind.MARK and tasks.duration_ns[i] > 0 for i in range(n)]
    devices = {int(device): Device(graph, n_units) for device in tasks.device if device >= 0}
    marks, now = [_arrival_mark(graph, i) for i in range(n)], 0.0
    active: dict[int, bool] = {}  # tasks that have been activated, and whether they wait
    while any(math.isnan(time) for time in end):
        for device in devices.values():
            for task in device.end_tasks(now) if device.next_ns <= now else ():
                end[task] = now
        has_moved = True
        while has_moved:  # all that happens at this time
            _resolve(graph, is_shared, start, end)
            ready = [_ready(graph, i, start, end) if is_shared[i] else math.inf for i in range(n)]
            for i in range(n):
                if is_shared[i] and i not in active and ready[i] > now and marks[i] >= 0 and end[marks[i]] <= now:
                    devices[int(tasks.device[i])].activate(i, now, waits=True)
                    active[i] = True
            for i in range(n):
                if is_shared[i] and ready[i] <= now and active.get(i, True):
                    device = devices[int(tasks.device[i])]
                    device.progress(now)
                    if i not in active:
                        device.activate(i, now, waits=False)
                    next(row for row in device.rows if row.task == i).waits = active[i] = False
            changed = [device for device in devices.values() if device.is_changed]
            for device in changed:
                device.share(now)
            begun = [row for device in changed for row in device.rows if row.rate > 0 and not row.has_started]
            for row in begun:
                row.has_started, start[row.task] = True, now
            has_moved = bool(begun)
        later = [time for i, time in enumerate(ready) if time > now and active.get(i, True)]
        later += [end[mark] for i, mark in enumerate(marks) if mark >= 0 and i not in active and end[mark] > now]
        later += [device.next_ns for device in devices.values()]
        if min(later, default=math.inf) < math.inf:
            now = min(later)
        elif any(math.isnan(time) for time in end):
            _let_in(list(devices.values()), now)
    return start, end


def _let_in(devices: list[Device], now: float) -> None:
    """Let a task run whatever the room: all that hold units wait for peers, which wait for it."""
    stuck = ((d, row) for d in devices for row in d.rows if not row.waits and row.rate <= 0 and not row.is_let_in)
    device, row = next(stuck)
    row.is_let_in, device.next_ns = True, now


def _resolve(graph: KernelGraph, is_shared: list[bool], start: list[float], end: list[float]) -> None:
    """Write the times of tasks that share nothing, as soon as all that they wait for is known."""
    again = True
    while again:
        again = False
        for i in range(len(end)):
            if not is_shared[i] and math.isnan(end[i]) and (ready := _ready(graph, i, start, end)) < math.inf:
                start[i], end[i] = ready, ready + float(graph.tasks.duration_ns[i])
                again = True


def _arrival_mark(graph: KernelGraph, task: int) -> int:
    """Return the mark at which the rank of a collective arrives, -1 for other tasks."""
    tasks, edges = graph.tasks, graph.edges
    meets = [e for e in range(len(edges)) if edges.kind[e] == EdgeKind.RENDEZVOUS]
    meetings = {edges.source[e] for e in meets if edges.target[e] == task and tasks.kind[task] == TaskKind.COLLECTIVE}
    marks = [int(edges.source[e]) for e in meets if edges.target[e] in meetings]
    return next((mark for mark in marks if tasks.lane[mark] == tasks.lane[task]), -1)


def _ready(graph: KernelGraph, task: int, start: list[float], end: list[float]) -> float:
    """Return when all that a task waits for is over; infinite if that is not known yet."""
    ready = float(graph.tasks.release_ns[task])
    for e in range(len(graph.edges)):
        if graph.edges.target[e] == task:
            since = (start if graph.edges.from_start[e] else end)[int(graph.edges.source[e])]
            ready = math.inf if math.isnan(since) else max(ready, since + float(graph.edges.lag_ns[e]))
    return ready
