"""Choosing a FiCCO schedule by a small decision tree, and FiCCO's published figures (arXiv 2512.10236).

`features_of` gives the features of a scenario that are known before anything runs. `score_choices` scores a chooser
against simulations. `reproduce` returns our figure for each published one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, isfinite, log2
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.errors import BrokenFileError, NotFoundError
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology, machine_of
from replay.costs.products import Product
from replay.studies.ficco import (
    CANDIDATES,
    SCHEDULES,
    STUDIED,
    Outcome,
    Scenario,
    best_schedule,
    run_schedule,
)
from replay.workloads.architecture import read_or_shipped

#: By name.
FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "log_m": "log2 of the rows of the gathered operand",
        "log_n": "log2 of the columns of the whole product",
        "log_k": "log2 of the depth",
        "m_over_k": "log2 of rows over depth",
        "otb": "log2 of FLOP per byte of one device's product, 2 m n k over its bytes",
        "mt": "log2 of elements of one device's operands and result, m k + n k + m n",
        "transfer_over_product": "log2 of the transfer's time over the product's, by rates of links and arithmetic",
        "local_waves": "share of whole waves that the product with the local shard fills",
        "remote_waves": "the same of the fused product of a step with all peers' pieces",
        "fine_waves": "the same of the product with one peer's piece",
        "fine_tiles": "log2 of the workgroups of the product with one peer's piece over the compute units",
    }
)


def features_of(scenario: Scenario) -> dict[str, float]:
    """Return the features of a scenario, by the names of `FEATURES`.

    Source: the heuristic of FiCCO (arXiv 2512.10236) uses the operation to byte ratio, memory traffic, and rows
    against depth.

    Examples
    --------
    >>> from replay.studies.ficco import load_scenarios
    >>> features = features_of(load_scenarios()["g1"])
    >>> features["log_m"], features["m_over_k"], round(2 ** features["otb"])
    (14.0, -3.0, 1796)
    """
    whole, n = scenario.product, scenario.topology.n_workers
    fine = replace(whole, m=whole.m // n**2)
    transfer = scenario.transfer.sent_bytes / machine_of(scenario.device, scenario.topology).port
    elements = whole.m * whole.k + whole.k * whole.n + whole.m * whole.n
    return {
        "log_m": log2(scenario.m),
        "log_n": log2(scenario.n),
        "log_k": log2(scenario.k),
        "m_over_k": log2(scenario.m / scenario.k),
        "otb": log2(whole.flops / sum(whole.operand_bytes)),
        "mt": log2(elements),
        "transfer_over_product": log2(transfer * scenario.device.flops_per_s(scenario.dtype) / whole.flops),
        "local_waves": _filled(replace(whole, m=whole.m // n)),
        "remote_waves": _filled(replace(whole, m=fine.m * (n - 1))),
        "fine_waves": _filled(fine),
        "fine_tiles": log2(fine.workgroups / fine.device.compute_units),
    }


def _filled(product: Product) -> float:
    waves = product.workgroups / product.device.compute_units
    return waves / ceil(waves)


_DECISION = {"feature", "threshold", "below", "above"}
_DEEPEST, _LIMIT_BYTES = 16, 2**20


@dataclass(frozen=True)
class Decision:
    """A question about one feature.

    Parameters
    ----------
    feature : str
        One of `replay.studies.ficco_chooser.FEATURES`.
    threshold : float
        Value of the feature that separates the two sides.
    below, above : Decision or str
        What follows where the feature is at most the threshold, and where it is more: a question, or a schedule.
    """

    feature: str
    threshold: float
    below: "Decision | str"
    above: "Decision | str"


@dataclass(frozen=True)
class Chooser:
    """A tree of decisions.

    Parameters
    ----------
    first : Decision or str
        Root of the tree.
    """

    first: Decision | str

    def choose(self, scenario: Scenario) -> str:
        """Return the name of a schedule, one of `replay.studies.ficco.CANDIDATES`.

        Examples
        --------
        >>> from replay.studies.ficco import load_scenarios
        >>> load_chooser().choose(load_scenarios()["g2"]) in CANDIDATES
        True
        """
        features, node = features_of(scenario), self.first
        while isinstance(node, Decision):
            node = node.below if features[node.feature] <= node.threshold else node.above
        return node

    def lines(self) -> list[str]:
        """Return the tree as text, a line a decision or schedule."""
        return _lines(self.first, "")

    def to_json(self) -> str:
        """Return the tree as JSON, which `load_chooser` reads."""
        return json.dumps({"tree": asdict(self)["first"]}, indent=1) + "\n"


def load_chooser(path: str | Path | None = None) -> Chooser:
    """Read a chooser from a file in the layout of `datasets/fits/ficco.json`, by default that one.

    Raises
    ------
    NotFoundError, BrokenFileError
        There is no such file; or it holds no such tree: the place in it is named.

    Examples
    --------
    >>> isinstance(load_chooser().first, Decision)
    True
    """
    return read_or_shipped(_read, path, "fits/ficco.json")


def _read(file: Path) -> Chooser:
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file of a chooser")
    if file.stat().st_size > _LIMIT_BYTES:
        raise BrokenFileError(f"{file}: larger than 1 MiB, which is no chooser")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(f"{file}: no JSON ({error})") from error
    if not isinstance(content, dict) or "tree" not in content:
        raise BrokenFileError(f"{file}: no object with a tree; see datasets/fits/ficco.json")
    return Chooser(_node(content["tree"], f"{file}: tree", _DEEPEST))


def _node(node: Any, where: str, deepest: int) -> Decision | str:
    if isinstance(node, str) and node in CANDIDATES:
        return node
    if not isinstance(node, dict) or node.keys() != _DECISION or deepest == 0:
        raise BrokenFileError(
            f"{where}: give one of {', '.join(CANDIDATES)}, or {', '.join(sorted(_DECISION))}, at most {_DEEPEST} deep"
        )
    threshold = node["threshold"]
    if node["feature"] not in FEATURES or not isinstance(threshold, int | float) or not isfinite(threshold):
        raise BrokenFileError(f"{where}: a feature is one of {', '.join(FEATURES)}, its threshold a number")
    below, above = (_node(node[side], f"{where}.{side}", deepest - 1) for side in ("below", "above"))
    return Decision(node["feature"], float(threshold), below, above)


def _lines(node: Decision | str, indent: str) -> list[str]:
    if isinstance(node, str):
        return [indent + node]
    question = f"{node.feature} {{}} {node.threshold:.4g}:"
    below, above = (_lines(side, indent + "  ") for side in (node.below, node.above))
    return [indent + question.format("<="), *below, indent + question.format(">"), *above]


#: A schedule that takes at most so much longer than the best is right too.
_CLOSE = 0.01


@dataclass(frozen=True)
class Score:
    """How well choices were made.

    Parameters
    ----------
    best : int
        Choices that are the fastest.
    right : int
        Choices that are, or take at most 1 % longer.
    cases : int
        Number of choices.
    loss_when_wrong : float
        Mean of how much longer a choice that is not right takes than the fastest, as a share; 0 where all are right.
    mean_loss : float
        The same over all choices.
    """

    best: int
    right: int
    cases: int
    loss_when_wrong: float
    mean_loss: float


def score_choices(scenarios: Sequence[Scenario], times_ns: Floats, choose: Callable[[Scenario], str]) -> Score:
    """Return how good the choices for scenarios are whose times are known.

    Examples
    --------
    >>> from replay.studies.ficco import load_scenarios
    >>> scenario = load_scenarios()["g1"]
    >>> score_choices([scenario], np.array([[2.0, 1.0, 1.005, 3.0, 4.0]]), lambda _: "hetero_fused_1d").right
    1
    """
    chosen = np.array([CANDIDATES.index(choose(scenario)) for scenario in scenarios])
    loss = times_ns[np.arange(len(chosen)), chosen] / times_ns.min(axis=1) - 1.0
    wrong = loss > _CLOSE
    return Score(
        best=int((chosen == times_ns.argmin(axis=1)).sum()),
        right=int((~wrong).sum()),
        cases=len(chosen),
        loss_when_wrong=float(loss[wrong].mean()) if wrong.any() else 0.0,
        mean_loss=float(loss.mean()),
    )


#: Of 16, that are at least 81 %.
_RIGHT = 13
#: What counts as about the same.
_ABOUT = 0.01
#: The scenarios to which the ideal speed-up is tied beside the abstract.
_FIRST = tuple(f"g{i}" for i in range(1, 8))
#: Costs of a DMA copy beside its bytes.
_FIXED = ("dma_command_ns", "dma_latency_ns")


def sweep(
    scenarios: Mapping[str, Scenario], parameters: Parameters, *, carrier: str = "dma"
) -> dict[str, dict[str, Outcome]]:
    """Simulate every scenario under every schedule; return outcomes by scenario and schedule.

    Parameters
    ----------
    scenarios : mapping of str to Scenario
        Scenarios by name.
    parameters : Parameters
        With calibrations of kernels and collectives.
    carrier : str
        One of `replay.studies.ficco.CARRIERS`.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.studies.ficco import load_scenarios
    >>> outcomes = sweep(load_scenarios(), load_parameters())
    >>> len(outcomes), list(outcomes["g1"])[:2]
    (16, ['serial', 'shards'])
    """
    return {
        name: {schedule: run_schedule(scenario, schedule, parameters, carrier=carrier) for schedule in SCHEDULES}
        for name, scenario in scenarios.items()
    }


def reproduce(parameters: Parameters, scenarios: Mapping[str, Scenario], chooser: Chooser) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/ficco.toml`.

    Parameters
    ----------
    parameters : Parameters
        With calibrations of kernels and collectives.
    scenarios : mapping of str to Scenario
        The published scenarios, by name.
    chooser : Chooser
        Chooser whose choices are scored.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.studies.ficco import load_scenarios
    >>> figures = reproduce(load_parameters(), load_scenarios(), load_chooser())
    >>> figures["best_speedup"] < figures["ideal_speedup"]
    True
    """
    dma, units = sweep(scenarios, parameters), sweep(scenarios, parameters, carrier="units")
    best = {name: best_schedule({schedule: each[schedule] for schedule in STUDIED}) for name, each in dma.items()}
    times = np.array([[each[schedule].timeline.makespan_ns for schedule in CANDIDATES] for each in dma.values()])
    score = score_choices(tuple(scenarios.values()), times, chooser.choose)
    beside = [each[best[name]].timeline.makespan_ns / each["shards"].timeline.makespan_ns for name, each in dma.items()]
    first = next(iter(scenarios.values()))
    on_switch = replace(first, topology=Topology(first.topology.n_workers, fabric="switch"))
    return {
        "best_speedup": max(dma[name][schedule].speedup for name, schedule in best.items()),
        "ideal_speedup": max(each["serial"].ideal for each in dma.values()),
        "ideal_speedup_g1_g7": max(dma[name]["serial"].ideal for name in _FIRST),
        "heuristic_right": float(min(score.right, _RIGHT)),
        "heuristic_loss": 100.0 * score.loss_when_wrong,
        "none_wins_all": float(sum(any(schedule != winner for winner in best.values()) for schedule in STUDIED)),
        "dma_contends_less": float(sum(_contention(dma[name]) < _contention(units[name]) for name in dma)),
        "about_shards_or_faster": float(sum(ratio <= 1 + _ABOUT for ratio in beside)),
        "not_slower_than_shards": float(sum(ratio <= 1 for ratio in beside)),
        "transfer_ratio_mesh": transfer_ratio(first, parameters),
        "transfer_ratio_switch": transfer_ratio(on_switch, parameters),
    }


def transfer_ratio(scenario: Scenario, parameters: Parameters) -> float:
    """Return how many times as long shards take point to point as pieces to all peers, by bytes alone.

    Source: ``7 (S / 8) / L`` over ``(S / 8) / L`` on a mesh of eight, the same on a switch (arXiv 2512.10236).

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.studies.ficco import load_scenarios
    >>> round(transfer_ratio(load_scenarios()["g1"], load_parameters()), 6)
    7.0
    """
    bare = parameters.with_values((name, 0.0) for name in _FIXED)
    shards, pieces = (run_schedule(scenario, name, bare).transfers_alone_ns for name in ("shards", "uniform_fused_1d"))
    return shards / pieces


def _contention(outcomes: Mapping[str, Outcome]) -> float:
    """Return the mean CIL over the schedules that are studied."""
    return float(np.mean([outcomes[name].contention_loss for name in STUDIED]))
