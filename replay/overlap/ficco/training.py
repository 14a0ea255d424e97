"""A chooser from simulations: scenarios that are drawn, schedules that are run, a tree that is grown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeClassifier

from profilers.errors import InvalidInputError
from replay.overlap.ficco.chooser import Chooser, Decision
from replay.overlap.ficco.features import FEATURES, features_of
from replay.overlap.ficco.schedules import CANDIDATES
from replay.overlap.ficco.timeline import makespan_ns
from replay.overlap.ficco.workload import Scenario
from replay.parameters import Parameters

__all__ = ["Score", "candidate_times_ns", "draw_scenarios", "grow_chooser", "score_choices"]

Floats = npt.NDArray[np.float64]
#: Least and most of each size, and what it is a multiple of: log-uniform between them.
_RANGES: Mapping[str, tuple[int, int, int]] = {
    "m": (2**12, 2**21, 64),
    "n": (2**12, 2**17, 256),
    "k": (2**11, 2**19, 256),
}
#: Of a device's memory, that the operands and the result may take.
_MEMORY_SHARE = 0.5
#: Sizes that all differ by less than this share are of the same scenario.
_NEAR = 0.1
#: A schedule that takes at most so much longer than the best is right too.
_CLOSE = 0.01


def draw_scenarios(like: Scenario, count: int, *, seed: int, without: Iterable[Scenario] = ()) -> tuple[Scenario, ...]:
    """Draw scenarios for the devices of another.

    m from 2^12 to 2^21, n from 2^12 to 2^17, k from 2^11 to 2^19, log-uniform, in multiples of 64, 256 and 256; what
    takes more than half of a device's memory is drawn again, and what is within 10 % in m, n and k of one of those
    `without`.

    Parameters
    ----------
    like : Scenario
        Its device, topology, data type and collective.
    count : int
    seed : int
    without : iterable of Scenario

    Raises
    ------
    InvalidInputError
        `count` is below 1.

    Examples
    --------
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> known = load_scenarios()
    >>> drawn = draw_scenarios(known["g1"], 3, seed=1, without=known.values())
    >>> [one.name for one in drawn], drawn == draw_scenarios(known["g1"], 3, seed=1, without=known.values())
    (['drawn 1', 'drawn 2', 'drawn 3'], True)
    """
    if count < 1:
        raise InvalidInputError(f"{count} scenarios to draw; give 1 or more")
    random, left_out = np.random.default_rng(seed), tuple(without)
    room = _MEMORY_SHARE * like.device.value("memory_gb") * 1e9
    found: list[Scenario] = []
    while len(found) < count:  # nine draws in ten fit
        sizes = {
            size: round(2 ** random.uniform(log2(least), log2(most)) / of) * of
            for size, (least, most, of) in _RANGES.items()
        }
        one = replace(like, name=f"drawn {len(found) + 1}", m=sizes["m"], n=sizes["n"], k=sizes["k"])
        if sum(one.product.operand_bytes) <= room and not any(_near(one, other) for other in left_out):
            found.append(one)
    return tuple(found)


def candidate_times_ns(scenarios: Sequence[Scenario], parameters: Parameters | None = None) -> Floats:
    """Return how long each scenario takes under each of `CANDIDATES`, ns, shape (scenarios, candidates)."""
    return np.array([[makespan_ns(one, name, parameters) for name in CANDIDATES] for one in scenarios])


def grow_chooser(
    scenarios: Sequence[Scenario], times_ns: Floats, *, depth: int = 6, least: int = 15, seed: int = 0
) -> Chooser:
    """Grow a tree that tells the fastest schedule from a scenario's features.

    A scenario counts by what choosing wrong would cost there: the mean loss over all candidates.

    Parameters
    ----------
    scenarios : sequence of Scenario
    times_ns : array of float64, shape (scenarios, candidates)
        As `candidate_times_ns` returns them.
    depth : int
        Most decisions on a way.
    least : int
        Fewest scenarios that a decision may set apart.
    seed : int

    Examples
    --------
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> drawn = draw_scenarios(load_scenarios()["g1"], 40, seed=1)
    >>> chooser = grow_chooser(drawn, candidate_times_ns(drawn), depth=2, least=5)
    >>> chooser.choose(drawn[0]) in CANDIDATES
    True
    """
    table = np.array([[features_of(one)[name] for name in FEATURES] for one in scenarios])
    loss = times_ns / times_ns.min(axis=1, keepdims=True) - 1.0
    tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=least, random_state=seed)
    tree.fit(table, times_ns.argmin(axis=1), sample_weight=loss.mean(axis=1))
    return Chooser(_simplified(_node(tree, 0, [CANDIDATES[i] for i in tree.classes_])))


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
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> one = load_scenarios()["g1"]
    >>> score_choices([one], np.array([[2.0, 1.0, 1.005, 3.0, 4.0]]), lambda _: "hetero_fused_1d").right
    1
    """
    chosen = np.array([CANDIDATES.index(choose(one)) for one in scenarios])
    loss = times_ns[np.arange(len(chosen)), chosen] / times_ns.min(axis=1) - 1.0
    wrong = loss > _CLOSE
    return Score(
        best=int((chosen == times_ns.argmin(axis=1)).sum()),
        right=int((~wrong).sum()),
        cases=len(chosen),
        loss_when_wrong=float(loss[wrong].mean()) if wrong.any() else 0.0,
        mean_loss=float(loss.mean()),
    )


def _near(one: Scenario, other: Scenario) -> bool:
    sizes = ((one.m, other.m), (one.n, other.n), (one.k, other.k))
    return all(abs(ours - theirs) <= _NEAR * theirs for ours, theirs in sizes)


def _node(tree: Any, at: int, classes: list[str]) -> Decision | str:
    grown = tree.tree_
    if grown.children_left[at] < 0:
        return classes[int(grown.value[at].argmax())]
    below, above = (_node(tree, int(side[at]), classes) for side in (grown.children_left, grown.children_right))
    return Decision(tuple(FEATURES)[int(grown.feature[at])], round(float(grown.threshold[at]), 4), below, above)


def _simplified(node: Decision | str) -> Decision | str:
    """Return the tree without decisions both of whose sides say the same."""
    if isinstance(node, str):
        return node
    below, above = _simplified(node.below), _simplified(node.above)
    return below if below == above and isinstance(below, str) else replace(node, below=below, above=above)
