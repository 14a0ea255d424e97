"""A scenario under a schedule: its graph, how long it takes, and what is lost on the way."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.intervals import union_length
from replay.assembly import Assembly
from replay.graph import KernelGraph, TaskKind
from replay.hardware import hardware_named
from replay.overlap.ficco.pieces import Piece, decomposition_loss, piece_columns, pieces_of
from replay.overlap.ficco.schedules import Schedule, find_schedule
from replay.overlap.ficco.steps import step_transfer, steps_of
from replay.overlap.ficco.workload import Scenario
from replay.overlap.products import product_ns
from replay.overlap.transfers import add_copies, kernel_columns
from replay.parameters import Parameters, load_parameters
from replay.policy import SharingPolicy
from replay.timeline import Timeline, replay

__all__ = ["CARRIERS", "Outcome", "best_schedule", "graph_of", "makespan_ns", "run_schedule"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: What moves the bytes: copies of DMA engines, or a kernel on compute units.
CARRIERS = ("dma", "units")
_PRODUCT = "product"


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario under a schedule.

    Parameters
    ----------
    scenario : Scenario
    schedule : Schedule
    product_ns, transfer_ns : float
        Whole and alone, the transfer as a kernel on compute units.
    decomposition_loss : float
        DIL, ``sum T_iso(pieces) / T_iso(whole)``.
    timeline : Timeline
        Of one device; all do the same at the same time.

    Notes
    -----
    ``S = (Tg + Tc) / T``, ``S_ideal = (Tg + Tc) / max(Tg, Tc)`` (arXiv 2512.10236, 2412.14335).
    """

    scenario: Scenario
    schedule: Schedule
    product_ns: float
    transfer_ns: float
    decomposition_loss: float
    timeline: Timeline

    @property
    def serial_ns(self) -> float:
        """The collective on compute units, then the product."""
        return self.product_ns + self.transfer_ns

    @property
    def speedup(self) -> float:
        """Over one after the other."""
        return self.serial_ns / self.timeline.makespan_ns

    @property
    def ideal(self) -> float:
        """The speed-up if the shorter were hidden at no cost."""
        return self.serial_ns / max(self.product_ns, self.transfer_ns)

    @cached_property
    def contention_loss(self) -> float:
        """CIL: how long products were active, over that if transfers used nothing but time.

        Of products that run one after another that is ``sum T_overlapped / sum T_iso``.
        """
        products = _is_product(self.timeline.graph)
        return _active_ns(self.timeline, products) / _active_ns(
            _without_demands(self.timeline.graph, ~products), products
        )

    @cached_property
    def transfers_alone_ns(self) -> float:
        """When the last transfer is done if products used nothing."""
        products = _is_product(self.timeline.graph)
        quiet = _without_demands(self.timeline.graph, products)
        return float(quiet.end_ns[~products].max())


def run_schedule(
    scenario: Scenario, schedule: str | Schedule, parameters: Parameters | None = None, *, carrier: str = "dma"
) -> Outcome:
    """Simulate a scenario under a schedule, on one of its devices: all do the same at the same time.

    Parameters
    ----------
    scenario : Scenario
    schedule : str or Schedule
        One of `replay.overlap.ficco.schedules.SCHEDULES`, or its name. The serial one always has its collective on
        compute units.
    parameters : Parameters, optional
    carrier : str
        One of `CARRIERS`.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such schedule or carrier.

    Examples
    --------
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> scenario = load_scenarios()["g11"]
    >>> serial, fine = (run_schedule(scenario, name) for name in ("serial", "hetero_fused_1d"))
    >>> round(serial.speedup, 9), bool(1.3 < fine.speedup < fine.ideal)
    (1.0, True)
    """
    known = parameters or load_parameters()
    chosen = find_schedule(schedule) if isinstance(schedule, str) else schedule
    return Outcome(
        scenario,
        chosen,
        product_ns(scenario.product),
        float(kernel_columns(scenario.transfer, known)["duration_ns"]),
        decomposition_loss(scenario, chosen),
        replay(graph_of(scenario, chosen, known, carrier=carrier)),
    )


def makespan_ns(scenario: Scenario, schedule: str, parameters: Parameters | None = None) -> float:
    """Return how long a scenario takes under a schedule, ns, its transfers on DMA engines, and nothing else.

    Examples
    --------
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> scenario = load_scenarios()["g4"]
    >>> makespan_ns(scenario, "serial") == run_schedule(scenario, "serial").timeline.makespan_ns
    True
    """
    known = parameters or load_parameters()
    return replay(graph_of(scenario, find_schedule(schedule), known)).makespan_ns


def best_schedule(outcomes: dict[str, Outcome]) -> str:
    """Return the name of the fastest; of equal ones, the first.

    Raises
    ------
    InvalidInputError
        There is none.
    """
    if not outcomes:
        raise InvalidInputError("no outcome to choose from; run a schedule first")
    return min(outcomes, key=lambda name: outcomes[name].timeline.makespan_ns)


def graph_of(
    scenario: Scenario, schedule: Schedule, parameters: Parameters | None = None, *, carrier: str = "dma"
) -> KernelGraph:
    """Return the graph of a scenario: products on stream 0 (unfused ones on one a peer), transfers on the last stream.

    Each product waits for the step that brings its data, and for the one before it on its stream; each step for the
    one before it. Transfers never wait for products: what they bring has its place in memory. Products that run one at
    a time lose whole waves where kernels that communicate take units from them; where they run side by side,
    workgroups of one fill what the waves of another leave.

    Parameters
    ----------
    scenario : Scenario
    schedule : Schedule
    parameters : Parameters, optional
    carrier : str
        One of `CARRIERS`; kernels that communicate are dispatched first.

    Raises
    ------
    InvalidInputError
        There is no such carrier.
    """
    if carrier not in CARRIERS:
        raise InvalidInputError(f"no carrier is called {carrier[:40]!r}; there are {', '.join(CARRIERS)}")
    known, work = parameters or load_parameters(), Assembly()
    arrivals = _add_steps(work, scenario, schedule, (known, carrier))
    _add_products(work, pieces_of(scenario, schedule), arrivals, known)
    alone = schedule.kernels == "fused" and not scenario.product.memory_bound
    sharing = SharingPolicy(quantised=alone)
    return work.graph(hardware_named(scenario.device, "user"), sharing)


def _add_steps(work: Assembly, scenario: Scenario, schedule: Schedule, how: tuple[Parameters, str]) -> list[Ints]:
    """Return the tasks of each step after which its data are there."""
    known, carrier = how
    lane = work.lane(device=0, stream=scenario.topology.n_workers)
    transfer, steps = step_transfer(scenario, schedule), steps_of(scenario, schedule)
    if carrier == "units" or schedule.transfer == "whole":
        kernel = {**kernel_columns(transfer, known), "priority": 1}
        kernels = [work.tasks(transfer.kind, lane, kernel) for _ in range(steps)]
        work.chain(np.concatenate(kernels))
        return kernels
    added = [add_copies(work, lane, transfer, known) for _ in range(steps)]
    for before, after in pairwise(added):
        # Commands are written ahead; an engine takes up its next copy when it is done with one.
        work.edges(before.commands[-1], after.commands[0])
        work.edges(before.copies, after.copies)
    return [one.copies for one in added]


def _add_products(work: Assembly, pieces: tuple[Piece, ...], arrivals: list[Ints], known: Parameters) -> None:
    alike = {(piece.product, piece.sums): piece for piece in pieces}
    columns = {key: piece_columns(piece, known) for key, piece in alike.items()}
    last: dict[int, Ints] = {}
    for piece in pieces:  # at most P squared of them
        stream = max(piece.peer, 0)
        task = work.tasks(_PRODUCT, work.lane(device=0, stream=stream), columns[piece.product, piece.sums])
        if piece.step >= 0:
            came = arrivals[piece.step]
            work.edges(came[[piece.peer]] if piece.peer >= 0 and len(came) > 1 else came, task)
        if stream in last:
            work.edges(last[stream], task)
        last[stream] = task


def _is_product(graph: KernelGraph) -> Bools:
    return np.asarray(graph.tasks.kind == TaskKind.KERNEL, dtype=np.bool_)


def _without_demands(graph: KernelGraph, rows: Bools) -> Timeline:
    """Run a graph in which some tasks take their time and nothing else."""
    tasks = graph.tasks
    return replay(
        graph.with_tasks(
            demand=np.where(rows[:, None], 0.0, tasks.demand),
            occupies=np.where(rows, 0.0, tasks.occupies),
            footprint=np.where(rows, 0.0, tasks.footprint),
        )
    )


def _active_ns(timeline: Timeline, rows: Bools) -> float:
    return float(union_length(timeline.start_ns[rows], timeline.end_ns[rows]))
