"""A scenario under a policy: its graph, how long it takes, and what share of the ideal speed-up that is."""

from dataclasses import dataclass, replace

from profilers.errors import InvalidInputError
from replay.assembly import Assembly
from replay.graph import KernelGraph
from replay.hardware import hardware_named
from replay.overlap.c3.policies import PARTITIONS, Policy, find_policy
from replay.overlap.c3.workload import Scenario
from replay.overlap.products import product_columns, product_ns
from replay.overlap.transfers import add_copies, kernel_columns, kernel_units
from replay.parameters import Parameters, load_parameters
from replay.policy import SharingPolicy
from replay.timeline import Timeline, replay

__all__ = ["Outcome", "chosen_units", "graph_of", "run_scenario"]

#: Longer than this times the other is long (arXiv 2412.14335).
_LONG = 1.15


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario under a policy.

    Parameters
    ----------
    scenario : Scenario
    policy : Policy
    units : int
        Compute units that were set apart for the collective; 0 for none.
    alone_ns : (float, float)
        The product and the transfer, each alone and on compute units.
    timelines : tuple of Timeline
        Both together, once for each order of dispatch that the policy leaves open.
    chances : tuple of float
        Of each of them; 1 together.

    Notes
    -----
    ``S = (Tg + Tc) / T``, ``S_ideal = (Tg + Tc) / max(Tg, Tc)``, ``% of ideal = 100 (S - 1) / (S_ideal - 1)``
    (arXiv 2412.14335). T is the mean over the orders of dispatch.
    """

    scenario: Scenario
    policy: Policy
    units: int
    alone_ns: tuple[float, float]
    timelines: tuple[Timeline, ...]
    chances: tuple[float, ...]

    @property
    def concurrent_ns(self) -> float:
        """Until both are done, when they start together."""
        return sum(chance * one.makespan_ns for chance, one in zip(self.chances, self.timelines, strict=True))

    @property
    def speedup(self) -> float:
        """Over one after the other."""
        return sum(self.alone_ns) / self.concurrent_ns

    @property
    def ideal(self) -> float:
        """The speed-up if the shorter were hidden at no cost."""
        return sum(self.alone_ns) / max(self.alone_ns)

    @property
    def percent_of_ideal(self) -> float:
        """What share of the ideal gain was reached, %."""
        return 100.0 * (self.speedup - 1.0) / (self.ideal - 1.0)

    @property
    def taxonomy(self) -> str:
        """``"G-long"``, ``"C-long"`` or ``"GC-equal"``: which of the two takes longer alone, by 15 %."""
        product, transfer = self.alone_ns
        if product > _LONG * transfer:
            return "G-long"
        return "C-long" if transfer > _LONG * product else "GC-equal"


def run_scenario(
    scenario: Scenario, policy: str | Policy, parameters: Parameters | None = None, *, units: int | None = None
) -> Outcome:
    """Simulate a scenario under a policy, on one of its devices: all do the same at the same time.

    Where the order of dispatch is open, the collective comes first with `collective_first_chance`.

    Parameters
    ----------
    scenario : Scenario
    policy : str or Policy
        One of `replay.overlap.c3.policies.POLICIES`, or its name.
    parameters : Parameters, optional
    units : int, optional
        Compute units to set apart for the collective, where the policy sets some apart; by default as the run-time
        chooses (`chosen_units`).

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such policy; the units leave the product or the collective none.

    Examples
    --------
    >>> from replay.overlap.c3.workload import load_scenarios
    >>> scenario = load_scenarios()["cb1_all_gather_same"]
    >>> first, dma = (run_scenario(scenario, name) for name in ("c3_sp", "conccl"))
    >>> 1 < first.speedup < dma.speedup < dma.ideal
    True
    """
    known = parameters or load_parameters()
    chosen = find_policy(policy) if isinstance(policy, str) else policy
    apart = 0
    orders: tuple[str, ...] = (chosen.order,)
    chances: tuple[float, ...] = (1.0,)
    if chosen.partition == "chosen":
        apart = chosen_units(scenario, known) if units is None else units
    if chosen.order == "either" and chosen.carrier == "units" and not apart:
        first = known["collective_first_chance"]
        orders, chances = ("product", "transfer"), (1.0 - first, first)
    timelines = (replay(graph_of(scenario, replace(chosen, order=one), known, units=apart)) for one in orders)
    transfer = float(kernel_columns(scenario.transfer, known)["duration_ns"])
    alone = (product_ns(scenario.product, known), transfer)
    return Outcome(scenario, chosen, apart, alone, tuple(timelines), chances)


def chosen_units(scenario: Scenario, parameters: Parameters | None = None) -> int:
    """Return how many compute units the run-time sets apart for the collective.

    ``argmin_k max(Tg slow_g(N - k), Tc slow_c(k))`` over `PARTITIONS`: a product takes more waves on fewer units, a
    collective slows in proportion below the units that saturate its links.

    Examples
    --------
    >>> from replay.overlap.c3.workload import load_scenarios
    >>> chosen_units(load_scenarios()["cb1_all_gather_twice"])
    32
    """
    known = parameters or load_parameters()
    product, transfer = scenario.product, scenario.transfer
    alone, enough = float(kernel_columns(transfer, known)["duration_ns"]), kernel_units(transfer.kind, known)
    return min(
        PARTITIONS,
        key=lambda k: (
            max(product_ns(replace(product, units=product.units - k), known), alone * max(enough / k, 1.0)),
            k,
        ),
    )


def graph_of(
    scenario: Scenario, policy: Policy, parameters: Parameters | None = None, *, units: int = 0
) -> KernelGraph:
    """Return the graph of a scenario: the product on stream 0, the collective on stream 1, both ready at once.

    Parameters
    ----------
    scenario : Scenario
    policy : Policy
    parameters : Parameters, optional
    units : int
        Set apart for the collective; 0 for no partition.

    Raises
    ------
    InvalidInputError
        The units leave the product or the collective none.

    Notes
    -----
    Of two that are ready at once, what the policy dispatches first takes the units that it can; an open order counts
    as the product first. A compute-bound product loses whole waves when it gets fewer units, a memory-bound one in
    proportion to what it lacks of the units that it needs.
    """
    known, device = parameters or load_parameters(), scenario.product.device
    whole = device.compute_units
    if not 0 <= units < whole:
        raise InvalidInputError(f"{units} compute units set apart of {whole}; leave the product one at least")
    product = scenario.product
    spared = policy.spared if product.memory_bound else 0
    if units or spared:
        product = replace(product, units=whole - max(units, spared))
    work = Assembly()
    lanes = [work.lane(device=0, stream=stream) for stream in (0, 1)]
    compute = {**product_columns(product, known), "cu_mask": 1 if units else -1}

    def add_product() -> None:
        work.tasks("product", lanes[0], compute)

    def add_transfer() -> None:
        if policy.carrier == "dma":
            add_copies(work, lanes[1], scenario.transfer, known)
            return
        work.tasks(
            scenario.transfer.kind,
            lanes[1],
            {**kernel_columns(scenario.transfer, known), "cu_mask": 2 if units else -1},
        )

    fewest = kernel_units(scenario.transfer.kind, known) < product.workgroups
    transfer_first = policy.order == "transfer" or (policy.order == "fewest workgroups" and fewest)
    for add in (add_transfer, add_product) if transfer_first else (add_product, add_transfer):
        add()
    parts = ((whole - units) / whole, units / whole) if units else (1.0,)
    sharing = SharingPolicy(partitions=parts, quantised=not product.memory_bound)
    return work.graph(hardware_named(device, "user"), sharing)
