"""Grow the chooser of FiCCO's schedules from simulations, and score it on the paper's scenarios, which it never saw.

python benchmarks/overlap/ficco_chooser.py datasets/fits/ficco.json
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.tree import DecisionTreeClassifier

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from profilers.files import write_text
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.collectives import Topology
from replay.costs.products import Product
from replay.costs.shipped import load_parameters
from replay.studies.ficco import load_scenarios
from replay.what_ifs.chooser import FEATURES, Chooser, Decision, ScheduleScore, features_of, score_choices
from replay.what_ifs.schedules import CANDIDATES, SCHEDULES, CoupledProduct, SchedulePlan, pattern_of

SEED, FOLDS = 1, 5
DEPTHS, LEAST = (2, 3, 4, 5, 6, 8), 15
#: Of trees whose mean loss is within this share of the lowest, the shallowest is taken.
TOLERANCE = 0.05
_Ranges = Mapping[str, tuple[int, int, int]]
#: Least and most of each size of a whole product, and what it is a multiple of: log-uniform between them. Sizes as wide
#: apart as the paper's, and those of transformers' layers.
WIDE: _Ranges = {"m": (2**12, 2**21, 64), "n": (2**12, 2**17, 256), "k": (2**11, 2**19, 256)}
LAYERS: _Ranges = {"m": (2**11, 2**17, 64), "n": (2**11, 2**16, 256), "k": (2**11, 2**15, 256)}
#: Groups of products to learn from: device, fabric, ranks, collective, sizes, and how many are drawn.
FAMILIES: tuple[tuple[str, str, int, str, _Ranges, int], ...] = (
    ("MI300X", "mesh", 8, "all_gather", WIDE, 1500),
    ("MI300X", "mesh", 8, "all_gather", LAYERS, 1200),
    ("MI300X", "mesh", 8, "reduce_scatter", LAYERS, 500),
    ("MI300X", "mesh", 4, "all_gather", LAYERS, 400),
    ("H100-SXM5-80GB", "switch", 8, "all_gather", LAYERS, 400),
)
#: Share of a device's memory that the operands and the result may take.
_MEMORY_SHARE = 0.5
#: Sizes that all differ by less than this share are of the same scenario.
_NEAR = 0.1


def draw_scenarios(
    like: CoupledProduct,
    count: int,
    *,
    seed: int,
    without: Iterable[CoupledProduct] = (),
    ranges: _Ranges = WIDE,
) -> tuple[CoupledProduct, ...]:
    """Draw products for the devices of another.

    Sizes are log-uniform. What takes more than half of a device's memory is drawn again, and what is within 10 % in m,
    n and k of a product of `without`.

    Parameters
    ----------
    like : CoupledProduct
        Its device, topology, data type and collective.
    count : int
        Number of products.
    seed : int
        Seed of the draw.
    without : iterable of CoupledProduct
        Products to stay away from.
    ranges : mapping
        Least and most of m, n and k, and what each is a multiple of.

    Raises
    ------
    InvalidInputError
        `count` is below 1.
    """
    if count < 1:
        raise InvalidInputError(f"{count} scenarios to draw; give 1 or more")
    random, left_out = np.random.default_rng(seed), tuple(without)
    device, ranks = like.product.device, like.topology.n_workers
    room = _MEMORY_SHARE * device.value("memory_gb") * 1e9
    drawn: list[CoupledProduct] = []
    while len(drawn) < count:  # nine draws in ten fit
        m, n, k = (round(2 ** random.uniform(log2(least), log2(most)) / of) * of for least, most, of in ranges.values())
        if like.sends:
            n, k = n * ranks, max(k // ranks, 1)
        product = replace(like.product, m=m, n=n // ranks, k=k)
        scenario = CoupledProduct(product, like.collective, like.topology)
        if sum(product.operand_bytes) <= room and not any(_near(product, other.product) for other in left_out):
            drawn.append(scenario)
    return tuple(drawn)


def candidate_times_ns(scenarios: Sequence[CoupledProduct], parameters: Parameters) -> Floats:
    """Return how long each product takes under each of `CANDIDATES`, ns, shape (scenarios, candidates)."""
    return np.array(
        [
            [pattern_of(SchedulePlan(scenario, SCHEDULES[name]), parameters).alone_ns() for name in CANDIDATES]
            for scenario in scenarios
        ]
    )


def grow_chooser(
    scenarios: Sequence[CoupledProduct], times_ns: Floats, *, depth: int = 6, least: int = 15, seed: int = 0
) -> Chooser:
    """Grow a tree that tells the fastest schedule from a product's features.

    A product counts by what choosing wrong would cost there: the mean loss over all candidates.

    Parameters
    ----------
    scenarios : sequence of CoupledProduct
        Products to learn from.
    times_ns : array of float64, shape (scenarios, candidates)
        As `candidate_times_ns` returns them.
    depth : int
        Most decisions on a way.
    least : int
        Fewest products that a decision may set apart.
    seed : int
        Seed of the tree.
    """
    table = np.array([[features_of(scenario)[name] for name in FEATURES] for scenario in scenarios])
    loss = times_ns / times_ns.min(axis=1, keepdims=True) - 1.0
    tree = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=least, random_state=seed)
    tree.fit(table, times_ns.argmin(axis=1), sample_weight=loss.mean(axis=1))
    return Chooser(_simplified(_trained_node(tree, 0, [CANDIDATES[i] for i in tree.classes_])))


def _near(product: Product, other: Product) -> bool:
    sizes = ((product.m, other.m), (product.n, other.n), (product.k, other.k))
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
    same = below == above and isinstance(below, str)
    return below if same else Decision(node.feature, node.threshold, below, above)


def lines_of(node: Decision | str, indent: str = "") -> list[str]:
    """Return a tree as text, a line a decision or schedule."""
    if isinstance(node, str):
        return [indent + node]
    question = f"{indent}{node.feature} {{}} {node.threshold:.4g}:"
    below, above = (lines_of(side, indent + "  ") for side in (node.below, node.above))
    return [question.format("<="), *below, question.format(">"), *above]


def folded(scenarios: tuple[CoupledProduct, ...], times: Floats, depth: int) -> list[ScheduleScore]:
    """Return a score a fold, on products that its tree was not grown on."""
    fold, scores = np.arange(len(scenarios)) % FOLDS, []
    for left_out in range(FOLDS):
        inside, outside = np.flatnonzero(fold != left_out), np.flatnonzero(fold == left_out)
        chooser = grow_chooser([scenarios[i] for i in inside], times[inside], depth=depth, least=LEAST)
        scores.append(score_choices([scenarios[i] for i in outside], times[outside], chooser.choose))
    return scores


def main() -> None:
    """Write the chooser to the file that is named, and scores to stdout."""
    parameters, known = load_parameters(), tuple(load_scenarios().values())
    drawn: tuple[CoupledProduct, ...] = ()
    for number, (device, fabric, ranks, collective, ranges, count) in enumerate(FAMILIES):
        product = Product(ranks**2, ranks, ranks, find_device(device))
        like = CoupledProduct(product, collective, Topology(ranks, node_devices=8, fabric=fabric))
        drawn += draw_scenarios(like, count, seed=SEED + number, without=known, ranges=ranges)
    times = candidate_times_ns(drawn, parameters)
    print("fastest of the drawn:", dict(zip(CANDIDATES, np.bincount(times.argmin(axis=1), minlength=5), strict=True)))
    losses = {}
    for depth in DEPTHS:
        scores = folded(drawn, times, depth)
        losses[depth] = float(np.mean([score.mean_loss for score in scores]))
        right, best = (sum(getattr(score, name) for score in scores) / len(drawn) for name in ("right", "best"))
        print(f"depth {depth}: left-out folds, {best:.1%} best, {right:.1%} right, mean loss {losses[depth]:.2%}")
    depth = min(depth for depth, loss in losses.items() if loss <= (1 + TOLERANCE) * min(losses.values()))
    chooser = grow_chooser(drawn, times, depth=depth, least=LEAST)
    print("\n".join(lines_of(chooser.tree)))
    unseen = candidate_times_ns(known, parameters)
    print(f"depth {depth}, the paper's scenarios: {score_choices(known, unseen, chooser.choose)}")
    for name in CANDIDATES:
        print(f"always {name}: {score_choices(known, unseen, lambda _, name=name: name)}")
    made = Chooser(chooser.tree, "benchmarks/overlap/ficco_chooser.py", len(drawn), SEED)
    write_text(Path(sys.argv[1]), msgspec.json.format(msgspec.json.encode(made), indent=1).decode() + "\n")


if __name__ == "__main__":
    main()
