"""Grow the chooser of FiCCO's schedules from simulations, and score it on the paper's scenarios, which it never saw.

python benchmarks/overlap/ficco_chooser.py datasets/fits/ficco.json
"""

import json
import sys
from pathlib import Path

import numpy as np

from profilers.files import write_text
from replay.costs.shipped import load_parameters
from replay.studies.ficco import CANDIDATES, Scenario, load_scenarios
from replay.studies.ficco_chooser import Score, candidate_times_ns, draw_scenarios, grow_chooser, score_choices

COUNT, SEED, FOLDS = 1500, 1, 5
DEPTHS, LEAST = (2, 3, 4, 5, 6, 8), 15
#: Of trees whose mean loss is within this share of the lowest, the shallowest is taken.
TOLERANCE = 0.05


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
