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

__all__ = ["Outcome", "chosen_units", "graph_of", "run_scenario", "taxonomy"]

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
    product_ns, transfer_ns : float
        Alone, the transfer on compute units.
    timeline : Timeline
        Both together.

    Notes
    -----
    ``S = (Tg + Tc) / T``, ``S_ideal = (Tg + Tc) / max(Tg, Tc)``, ``% of ideal = 100 (S - 1) / (S_ideal - 1)``
    (arXiv 2412.14335).
    """

    scenario: Scenario
    policy: Policy
    units: int
    product_ns: float
    transfer_ns: float
    timeline: Timeline

    @property
    def speedup(self) -> float:
        """Over one after the other."""
        return (self.product_ns + self.transfer_ns) / self.timeline.makespan_ns

    @property
    def ideal(self) -> float:
        """The speed-up if the shorter were hidden at no cost."""
        return (self.product_ns + self.transfer_ns) / max(self.product_ns, self.transfer_ns)

    @property
    def percent_of_ideal(self) -> float:
        """What share of the ideal gain was reached, %."""
        return 100.0 * (self.speedup - 1.0) / (self.ideal - 1.0)


def run_scenario(
    scenario: Scenario, policy: str | Policy, parameters: Parameters | None = None, *, units: int | None = None
) -> Outcome:
    """Simulate a scenario under a policy, on one of its devices: all do the same at the same time.

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
    if chosen.partition == "chosen":
        apart = chosen_units(scenario, known) if units is None else units
    graph = graph_of(scenario, chosen, known, units=apart)
    alone = float(kernel_columns(scenario.transfer, known)["duration_ns"])
    return Outcome(scenario, chosen, apart, product_ns(scenario.product), alone, replay(graph))


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
            max(product_ns(replace(product, units=product.units - k)), alone * max(enough / k, 1.0)),
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
    A compute-bound product loses whole waves when it gets fewer units, a memory-bound one in proportion to what it
    lacks of the units that it needs.
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
    transfer_first = policy.order == "fewest workgroups" and fewest
    for add in (add_transfer, add_product) if transfer_first else (add_product, add_transfer):
        add()
    parts = ((whole - units) / whole, units / whole) if units else (1.0,)
    sharing = SharingPolicy(partitions=parts, quantised=not product.memory_bound)
    return work.graph(hardware_named(device, "user"), sharing)


def taxonomy(outcome: Outcome) -> str:
    """Return ``"G-long"``, ``"C-long"`` or ``"GC-equal"``: which of the two takes longer alone, by 15 %."""
    if outcome.product_ns > _LONG * outcome.transfer_ns:
        return "G-long"
    return "C-long" if outcome.transfer_ns > _LONG * outcome.product_ns else "GC-equal"
