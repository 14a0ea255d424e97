"""Which schedule is the best for a scenario, said by a small tree of decisions, without a simulation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from profilers.datasets import dataset_path
from profilers.errors import BrokenFileError, NotFoundError
from replay.overlap.ficco.features import FEATURES, features_of
from replay.overlap.ficco.schedules import CANDIDATES
from replay.overlap.ficco.workload import Scenario

__all__ = ["Chooser", "Decision", "load_chooser"]

_DECISION = {"feature", "threshold", "below", "above"}
_DEEPEST, _LIMIT_BYTES = 16, 2**20


@dataclass(frozen=True)
class Decision:
    """A question about one feature.

    Parameters
    ----------
    feature : str
        One of `replay.overlap.ficco.features.FEATURES`.
    threshold : float
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
    """

    first: Decision | str

    def choose(self, scenario: Scenario) -> str:
        """Return the name of a schedule, one of `replay.overlap.ficco.schedules.CANDIDATES`.

        Examples
        --------
        >>> from replay.overlap.ficco.workload import load_scenarios
        >>> load_chooser().choose(load_scenarios()["g2"]) in CANDIDATES
        True
        """
        return self.choose_by(features_of(scenario))

    def choose_by(self, features: Mapping[str, float]) -> str:
        """Return the same for features that are known already."""
        node = self.first
        while isinstance(node, Decision):
            node = node.below if features[node.feature] <= node.threshold else node.above
        return node

    def lines(self) -> list[str]:
        """Return the tree as text, a line a decision or schedule."""
        return _lines(self.first, "")

    def to_json(self) -> str:
        """Return the tree as JSON, which `load_chooser` reads."""
        return json.dumps({"tree": _plain(self.first)}, indent=1) + "\n"


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
    return _shipped() if path is None else _read(Path(path))


@cache
def _shipped() -> Chooser:
    return _read(dataset_path("fits/ficco.json"))


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


def _node(node: Any, place: str, deepest: int) -> Decision | str:
    if isinstance(node, str) and node in CANDIDATES:
        return node
    if not isinstance(node, dict) or node.keys() != _DECISION or deepest == 0:
        raise BrokenFileError(
            f"{place}: give one of {', '.join(CANDIDATES)}, or {', '.join(sorted(_DECISION))}, at most {_DEEPEST} deep"
        )
    threshold = node["threshold"]
    if node["feature"] not in FEATURES or not isinstance(threshold, int | float) or not isfinite(threshold):
        raise BrokenFileError(f"{place}: a feature is one of {', '.join(FEATURES)}, its threshold a number")
    below, above = (_node(node[side], f"{place}.{side}", deepest - 1) for side in ("below", "above"))
    return Decision(node["feature"], float(threshold), below, above)


def _plain(node: Decision | str) -> Any:
    if isinstance(node, str):
        return node
    sides = {"below": _plain(node.below), "above": _plain(node.above)}
    return {"feature": node.feature, "threshold": node.threshold, **sides}


def _lines(node: Decision | str, indent: str) -> list[str]:
    if isinstance(node, str):
        return [indent + node]
    question = f"{node.feature} {{}} {node.threshold:.4g}:"
    below, above = (_lines(side, indent + "  ") for side in (node.below, node.above))
    return [indent + question.format("<="), *below, indent + question.format(">"), *above]
