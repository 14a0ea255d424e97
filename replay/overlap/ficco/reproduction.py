"""What FiCCO's paper (arXiv 2512.10236) reports, from the paper's own scenarios."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from replay.collectives import Topology
from replay.overlap.ficco.chooser import load_chooser
from replay.overlap.ficco.schedules import CANDIDATES, SCHEDULES, STUDIED
from replay.overlap.ficco.timeline import Outcome, best_schedule, run_schedule
from replay.overlap.ficco.training import score_choices
from replay.overlap.ficco.workload import Scenario, load_scenarios
from replay.parameters import Parameters, load_parameters

__all__ = ["reproduce", "sweep", "transfer_ratio"]

#: Of 16, that are at least 81 %.
_RIGHT = 13
#: What counts as about the same.
_ABOUT = 0.01
#: The scenarios to which the ideal speed-up is tied beside the abstract.
_FIRST = tuple(f"g{i}" for i in range(1, 8))
#: Costs of a DMA copy beside its bytes.
_FIXED = ("dma_command_ns", "dma_latency_ns")


def sweep(parameters: Parameters | None = None, *, carrier: str = "dma") -> dict[str, dict[str, Outcome]]:
    """Return what comes of every shipped scenario under every schedule, by scenario and schedule.

    Examples
    --------
    >>> found = sweep()
    >>> len(found), list(found["g1"])[:2]
    (16, ['serial', 'shards'])
    """
    known = parameters or load_parameters()
    return {
        name: {schedule: run_schedule(scenario, schedule, known, carrier=carrier) for schedule in SCHEDULES}
        for name, scenario in load_scenarios().items()
    }


def reproduce(parameters: Parameters | None = None) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/ficco.toml`.

    Examples
    --------
    >>> found = reproduce()
    >>> found["best_speedup"] < found["ideal_speedup"]
    True
    """
    known = parameters or load_parameters()
    dma, units = sweep(known), sweep(known, carrier="units")
    best = {name: best_schedule({one: each[one] for one in STUDIED}) for name, each in dma.items()}
    times = np.array([[each[one].timeline.makespan_ns for one in CANDIDATES] for each in dma.values()])
    score = score_choices(tuple(load_scenarios().values()), times, load_chooser().choose)
    beside = [
        dma[name][one].timeline.makespan_ns / dma[name]["shards"].timeline.makespan_ns for name, one in best.items()
    ]
    first = next(iter(load_scenarios().values()))
    on_switch = replace(first, topology=Topology(first.topology.n_workers, fabric="switch"))
    return {
        "best_speedup": max(dma[name][one].speedup for name, one in best.items()),
        "ideal_speedup": max(each["serial"].ideal for each in dma.values()),
        "ideal_speedup_g1_g7": max(dma[name]["serial"].ideal for name in _FIRST),
        "heuristic_right": float(min(score.right, _RIGHT)),
        "heuristic_loss": 100.0 * score.loss_when_wrong,
        "none_wins_all": float(sum(any(one != winner for winner in best.values()) for one in STUDIED)),
        "dma_contends_less": float(sum(_contention(dma[name]) < _contention(units[name]) for name in dma)),
        "about_shards_or_faster": float(sum(one <= 1 + _ABOUT for one in beside)),
        "not_slower_than_shards": float(sum(one <= 1 for one in beside)),
        "transfer_ratio_mesh": transfer_ratio(first, known),
        "transfer_ratio_switch": transfer_ratio(on_switch, known),
    }


def transfer_ratio(scenario: Scenario, parameters: Parameters | None = None) -> float:
    """Return how many times as long shards take point to point as pieces to all peers, by bytes alone.

    Source: ``7 (S / 8) / L`` over ``(S / 8) / L`` on a mesh of eight, the same on a switch (arXiv 2512.10236).

    Examples
    --------
    >>> round(transfer_ratio(load_scenarios()["g1"]), 6)
    7.0
    """
    bare = (parameters or load_parameters()).with_values((name, 0.0) for name in _FIXED)
    shards, pieces = (run_schedule(scenario, name, bare).transfers_alone_ns for name in ("shards", "uniform_fused_1d"))
    return shards / pieces


def _contention(outcomes: Mapping[str, Outcome]) -> float:
    """Return the mean CIL over the schedules that are studied."""
    return float(np.mean([outcomes[name].contention_loss for name in STUDIED]))
