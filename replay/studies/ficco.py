"""FiCCO's set-up and published figures (arXiv 2512.10236): products whose left operand is gathered from eight devices.

`load_scenarios` reads the table of products. `scenario_trace` writes one as a trace of a single rank, and `reproduce`
applies the what-if `ficco` to them all.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from profilers.errors import InvalidInputError
from profilers.files import read_toml, typed_tables
from profilers.trace.arrays import Bools, Floats, union_length
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.products import HardwareTable, Product, kernel_columns, product_ns, read_hardware
from replay.engine.timeline import Timeline, replay
from replay.graph.graph import KernelGraph, TaskKind
from replay.studies.workloads import layer_graph, layer_trace
from replay.what_ifs import parse_what_if
from replay.what_ifs.chooser import Chooser, score_choices
from replay.what_ifs.schedules import CANDIDATES, SCHEDULES, STUDIED, CoupledProduct, SchedulePlan
from replay.workloads.architecture import read_or_shipped
from replay.workloads.program import Collective, KernelCall


class GatheringTable(HardwareTable, frozen=True, forbid_unknown_fields=True):
    """The devices of a file of scenarios, and the collective that their products wait for."""

    dtype: str
    collective: str


class SizesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sizes of a whole product, m x k by k x n, in a file of scenarios."""

    m: int
    n: int
    k: int
    source: str


def load_scenarios(path: str | Path | None = None) -> Mapping[str, CoupledProduct]:
    """Read scenarios from a TOML file in the layout of `datasets/workloads/ficco.toml`, by default that one.

    Each device multiplies the gathered m x k by its share of the n columns.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the entry and the key are named.

    Examples
    --------
    >>> scenario = load_scenarios()["g1"]
    >>> scenario.product.n, round(scenario.transfer.size_bytes / 1e9, 2)
    (2048, 4.29)
    """
    return read_or_shipped(_read, path, "workloads/ficco.toml")


def _read(file: Path) -> Mapping[str, CoupledProduct]:
    content = read_toml(file, "scenarios")
    table, device, topology = read_hardware(content, GatheringTable, file)
    scenarios = {}
    for name, size in typed_tables(content, "scenarios", SizesTable, file).items():
        try:
            product = Product(size.m, size.n // topology.n_workers, size.k, device, table.dtype)
            scenarios[name] = CoupledProduct(product, table.collective, topology)
        except InvalidInputError as error:
            raise InvalidInputError(f"{file}: scenarios.{name}: {error}") from error
    return MappingProxyType(scenarios)


def scenario_trace(name: str, scenario: CoupledProduct, parameters: Parameters) -> Trace:
    """Return a scenario as the trace of a rank that stands for all: the collective, then the product.

    Parameters
    ----------
    name : str
        Name of the iteration.
    scenario : CoupledProduct
        Product and collective; both take the times of the models.
    parameters : Parameters
        With calibrations of kernels and collectives.
    """
    product, transfer, ranks = scenario.product, scenario.transfer, scenario.topology.n_workers
    exchange = Collective(transfer.kind, product.m * product.k, "tensor", ranks)
    times = (kernel_columns(transfer, parameters)["duration_ns"], product_ns(product, parameters))
    library = f"ncclDevKernel_{transfer.kind.title().replace('_', '')}_Simple"
    calls = [
        KernelCall(library, f"nccl:{transfer.kind}", round(times[0]), _CALL_NS, exchange=exchange, workgroups=32),
        KernelCall(
            "Cijk_Ailk_Bljk_gemm", "aten::mm", round(times[1]), _CALL_NS, shape=(product.m, product.k),
            operands=((product.k, product.n),), workgroups=product.workgroups,
        ),
    ]  # fmt: skip
    return layer_trace(name, product.device, calls, world_size=ranks)


#: Time on the host from a call to the next.
_CALL_NS = 1_500


class FiccoOutcome:
    """A scenario under a schedule, as the what-if says.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the scenario.
    schedule : str
        One of `SCHEDULES`; the serial one is the graph as it is.
    carrier : str
        Carrier of the bytes.
    parameters : Parameters
        With calibrations of kernels and collectives.
    """

    def __init__(self, graph: KernelGraph, schedule: str, carrier: str, parameters: Parameters) -> None:
        tasks = graph.tasks
        self.product_ns, self.transfer_ns = (
            float(tasks.duration_ns[tasks.kind == kind].sum()) for kind in (TaskKind.KERNEL, TaskKind.COLLECTIVE)
        )
        text = "nothing" if schedule == "serial" else f"ficco:{schedule}:{carrier}"
        self.serial_ns = replay(graph).makespan_ns
        self.timeline = replay(parse_what_if(text)(graph, parameters))

    @property
    def speedup(self) -> float:
        """Over one after the other."""
        return self.serial_ns / self.timeline.makespan_ns

    @property
    def ideal(self) -> float:
        """The speed-up if the shorter were hidden at no cost, ``(Tg + Tc) / max(Tg, Tc)``."""
        return (self.product_ns + self.transfer_ns) / max(self.product_ns, self.transfer_ns)

    @cached_property
    def contention_loss(self) -> float:
        """CIL: how long products were active, over that if transfers used nothing but time.

        For products that run one after another that is ``sum T_overlapped / sum T_iso``.
        """
        products = np.asarray(self.timeline.graph.tasks.kind == TaskKind.KERNEL, dtype=np.bool_)
        return _active_ns(self.timeline, products) / _active_ns(_without_demands(self.timeline, ~products), products)


def _without_demands(timeline: Timeline, rows: Bools) -> Timeline:
    """Run a graph in which some tasks take their time and nothing else."""
    tasks = timeline.graph.tasks
    used = {name: np.where(rows, 0.0, getattr(tasks, name)) for name in ("occupies", "pressure", "footprint")}
    return replay(timeline.graph.with_tasks(demand=np.where(rows[:, None], 0.0, tasks.demand), **used))


def _active_ns(timeline: Timeline, rows: Bools) -> float:
    return float(union_length(timeline.start_ns[rows], timeline.end_ns[rows]))


#: Of 16, that are at least 81 %.
_RIGHT = 13
#: Longer times that count as about the same.
_ABOUT = 0.01
#: The scenarios to which the ideal speed-up is tied beside the abstract.
_FIRST = tuple(f"g{i}" for i in range(1, 8))


def sweep(
    scenarios: Mapping[str, CoupledProduct], parameters: Parameters, *, carrier: str = "dma"
) -> dict[str, dict[str, FiccoOutcome]]:
    """Return the outcomes of every scenario under every schedule.

    Parameters
    ----------
    scenarios : mapping of str to CoupledProduct
        Scenarios by name.
    parameters : Parameters
        With calibrations of kernels and collectives.
    carrier : str
        One of `replay.what_ifs.schedules.CARRIERS`.
    """
    graphs = {name: layer_graph(scenario_trace(name, each, parameters), parameters) for name, each in scenarios.items()}
    return {
        name: {schedule: FiccoOutcome(graph, schedule, carrier, parameters) for schedule in SCHEDULES}
        for name, graph in graphs.items()
    }


def reproduce(parameters: Parameters, scenarios: Mapping[str, CoupledProduct], chooser: Chooser) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/ficco.toml`.

    Parameters
    ----------
    parameters : Parameters
        With calibrations of kernels and collectives.
    scenarios : mapping of str to CoupledProduct
        The published scenarios, by name.
    chooser : Chooser
        Chooser whose choices are scored.
    """
    dma, units = sweep(scenarios, parameters), sweep(scenarios, parameters, carrier="units")
    times = times_ns(dma, CANDIDATES)
    best = [STUDIED[i] for i in times_ns(dma, STUDIED).argmin(axis=1)]
    score = score_choices(tuple(scenarios.values()), times, chooser.choose)
    beside = times_ns(dma, STUDIED).min(axis=1) / times_ns(dma, ("shards",))[:, 0]
    ideal = {name: each["serial"].ideal for name, each in dma.items()}
    losses = [np.array([_contention_loss(each) for each in outcomes.values()]) for outcomes in (dma, units)]
    first = next(iter(scenarios.values()))
    on_switch = replace(first, topology=replace(first.topology, fabric="switch"))
    return {
        "best_speedup": max(each[name].speedup for each, name in zip(dma.values(), best, strict=True)),
        "ideal_speedup": max(ideal.values()),
        "ideal_speedup_g1_g7": max(ideal[name] for name in _FIRST),
        "heuristic_right": float(min(score.right, _RIGHT)),
        "heuristic_loss": 100.0 * score.loss_when_wrong,
        "none_wins_all": float(sum(any(schedule != winner for winner in best) for schedule in STUDIED)),
        "dma_contends_less": float((losses[0] < losses[1]).sum()),
        "about_shards_or_faster": float((beside <= 1 + _ABOUT).sum()),
        "not_slower_than_shards": float((beside <= 1).sum()),
        "transfer_ratio_mesh": transfer_ratio(first, parameters),
        "transfer_ratio_switch": transfer_ratio(on_switch, parameters),
    }


def times_ns(outcomes: Mapping[str, Mapping[str, FiccoOutcome]], schedules: tuple[str, ...]) -> Floats:
    """Return how long scenarios take under schedules, ns, shape (scenarios, schedules)."""
    return np.array([[each[name].timeline.makespan_ns for name in schedules] for each in outcomes.values()])


def _contention_loss(outcomes: Mapping[str, FiccoOutcome]) -> float:
    """Return the mean CIL over the schedules of the paper."""
    return float(np.mean([outcomes[name].contention_loss for name in STUDIED]))


def transfer_ratio(scenario: CoupledProduct, parameters: Parameters) -> float:
    """Return how many times as long shards take point to point as pieces to all peers, by bytes alone.

    Source: ``7 (S / 8) / L`` over ``(S / 8) / L`` on a mesh of eight, the same on a switch (arXiv 2512.10236).

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> round(transfer_ratio(load_scenarios()["g1"], load_parameters()), 6)
    7.0
    """
    bare = parameters.with_values([("dma_latency_ns", 0.0)])
    plans = [SchedulePlan(scenario, SCHEDULES[name]) for name in ("shards", "uniform_fused_1d")]
    shards, pieces = (plan.transfer_ns(bare) for plan in plans)
    return shards / pieces
