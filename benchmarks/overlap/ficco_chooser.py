"""Grow the chooser of FiCCO's schedules from simulations, and score it on the paper's scenarios, which it never saw.

python benchmarks/overlap/ficco_chooser.py datasets/fits/ficco.json
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from profilers.errors import InvalidInputError
from profilers.files import write_text
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.studies.ficco import CANDIDATES, Scenario, load_scenarios, makespan_ns
from replay.studies.ficco_chooser import FEATURES, Chooser, Decision, Score, features_of, score_choices

COUNT, SEED, FOLDS = 1500, 1, 5
DEPTHS, LEAST = (2, 3, 4, 5, 6, 8), 15
#: Of trees whose mean loss is within this share of the lowest, the shallowest is taken.
TOLERANCE = 0.05


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
    """
    table = np.array([[features_of(one)[name] for name in FEATURES] for one in scenarios])
    loss = times_ns / times_ns.min(axis=1, keepdims=True) - 1.0
    tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=least, random_state=seed)
    tree.fit(table, times_ns.argmin(axis=1), sample_weight=loss.mean(axis=1))
    return Chooser(_simplified(_trained_node(tree, 0, [CANDIDATES[i] for i in tree.classes_])))


def _near(one: Scenario, other: Scenario) -> bool:
    sizes = ((one.m, other.m), (one.n, other.n), (one.k, other.k))
    return all(abs(ours - theirs) <= _NEAR * theirs for ours, theirs in sizes)


def _trained_node(tree: Any, at: int, classes: list[str]) -> Decision | str:
    grown = tree.tree_
    if grown.children_left[at] < 0:
        return classes[int(grown.value[at].argmax())]
    below, above = (_trained_node(tree, int(side[at]), classes) for side in (grown.children_left, grown.children_right))
    return Decision(tuple(FEATURES)[int(grown.feature[at])], round(float(grown.threshold[at]), 4), below, above)


def _simplified(node: Decision | str) -> Decision | str:
    """Return the tree without decisions both of whose sides say the same."""
    if isinstance(node, str):
        return node
    below, above = _simplified(node.below), _simplified(node.above)
    return below if below == above and isinstance(below, str) else replace(node, below=below, above=above)


def folded(scenarios: tuple[Scenario, ...], times: np.ndarray, depth: int) -> list[Score]:
    """Return a score a fold, on scenarios that its tree was not grown on."""
    fold, scores = np.arange(len(scenarios)) % FOLDS, []
    for one in range(FOLDS):
        inside, outside = np.flatnonzero(fold != one), np.flatnonzero(fold == one)
        chooser = grow_chooser([scenarios[i] for i in inside], times[inside], depth=depth, least=LEAST)
        scores.append(score_choices([scenarios[i] for i in outside], times[outside], chooser.choose))
    return scores


def main() -> None:
    """Write the chooser to the file that is named, and scores to stdout."""
    known = tuple(load_scenarios().values())
    drawn = draw_scenarios(known[0], COUNT, seed=SEED, without=known)
    times, unseen = (
        candidate_times_ns(drawn, parameters=load_parameters()),
        candidate_times_ns(known, parameters=load_parameters()),
    )
    print("fastest of the drawn:", dict(zip(CANDIDATES, np.bincount(times.argmin(axis=1), minlength=5), strict=True)))
    losses = {}
    for depth in DEPTHS:
        scores = folded(drawn, times, depth)
        losses[depth] = float(np.mean([one.mean_loss for one in scores]))
        right, best = (sum(getattr(one, name) for one in scores) / len(drawn) for name in ("right", "best"))
        print(f"depth {depth}: left-out folds, {best:.1%} best, {right:.1%} right, mean loss {losses[depth]:.2%}")
    depth = min(one for one, loss in losses.items() if loss <= (1 + TOLERANCE) * min(losses.values()))
    chooser = grow_chooser(drawn, times, depth=depth, least=LEAST)
    print("\n".join(chooser.lines()))
    print(f"depth {depth}, the paper's scenarios: {score_choices(known, unseen, chooser.choose)}")
    for name in CANDIDATES:
        print(f"always {name}: {score_choices(known, unseen, lambda _, name=name: name)}")
    content = {
        "made_by": "benchmarks/overlap/ficco_chooser.py",
        "scenarios": COUNT,
        "seed": SEED,
        **json.loads(chooser.to_json()),
    }
    write_text(Path(sys.argv[1]), json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
