"""`TrainingFit`: costs of training as they were fitted, and the file that holds them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

from profilers.atomic import write_text
from profilers.datasets import dataset_path
from profilers.errors import InvalidInputError
from replay.calibration_file import read_calibration_file
from replay.training.costs import PRIORS, TrainingCosts

__all__ = ["TrainingFit", "load_training", "read_training_fit", "write_training_fit"]


@dataclass(frozen=True)
class TrainingFit:
    """Costs, and how far what they predict is off.

    Parameters
    ----------
    device : str
        Name in the catalogue.
    devices : int
        Largest number of devices that was measured, all in one node.
    costs : TrainingCosts
    recompute : bool
        Whether the measured runs run layers' forward pass again: the way that explains them better.
    spread : float
        Of the logarithm of the measured time over that predicted without it, nine in ten are below this.
    digests : tuple of str
        Of the measurements that were fitted.
    source : str
    """

    device: str
    devices: int
    costs: TrainingCosts
    recompute: bool
    spread: float
    digests: tuple[str, ...] = ()
    source: str = ""


def write_training_fit(path: Path, fit: TrainingFit) -> None:
    """Write a fit as JSON."""
    costs = {name: float(f"{value:.5g}") for name, value in asdict(fit.costs).items()}
    content = {**asdict(fit), "costs": costs, "spread": round(fit.spread, 4), "digests": " ".join(fit.digests)}
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_training_fit(path: str | Path) -> TrainingFit:
    """Read what `write_training_fit` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or it is no such fit: the key is named.
    """
    absent = "no such file of training costs; `seqpoint calibrate training` writes one"
    return read_calibration_file(path, absent, "no fit of training costs", _fit_of)


def _fit_of(content: Mapping[str, Any]) -> TrainingFit:
    costs = {name: float(content["costs"][name]) for name in PRIORS}
    spread = float(content["spread"])
    for name, value in {**costs, "spread": spread}.items():
        if not (isfinite(value) and value > 0):
            raise InvalidInputError(f"{name} is {value:g}; it must be finite and above zero")
    return TrainingFit(
        str(content["device"]),
        int(content["devices"]),
        TrainingCosts(**costs),
        bool(content["recompute"]),
        spread,
        tuple(str(content["digests"]).split()),
        str(content["source"]),
    )


@cache
def load_training() -> TrainingFit:
    """Return the shipped costs.

    Examples
    --------
    >>> load_training().device
    'A100-SXM4-80GB'
    """
    return read_training_fit(dataset_path("fits/training.json"))
