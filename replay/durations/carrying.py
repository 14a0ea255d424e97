"""Carry parameters over to a device that was never measured."""

from collections.abc import Mapping

import numpy as np

from profilers.devices import Device, find_device
from profilers.errors import InvalidInputError
from replay.durations.fitting import Fit
from replay.durations.machine import Machine
from replay.durations.models import MODELS

__all__ = ["carry_over", "runs_hot"]

#: Weight of a device of another family when parameters are carried over; of the same family it is 1. Of 0.003 to 0.1 it
#: makes little difference to most kinds, and 0.01 is the best for matrix products on the files that are fitted.
_OTHER_FAMILY = 0.01
#: Cards below this power limit run into it, and into heat, so that what they sustain says little of others.
_LEAST_WATT = 100.0
_HOT_CARD = 0.1
#: Of parameters that are carried over nothing is known yet.
_NO_SPREAD = 0.0


def runs_hot(device: Device) -> bool:
    """Return whether a card's power limit is so low that it runs into it."""
    return "power_w" in device.figures and device.value("power_w") < _LEAST_WATT


def carry_over(kind: str, donors: Mapping[str, Fit], machine: Machine) -> Fit:
    """Return parameters for a device without measurements: the mean of their logarithms over the others.

    A device of the same family counts a hundred times one of another; a card below 100 W a tenth of that, and of its
    efficiency nothing.

    Raises
    ------
    InvalidInputError
        There is no other device.
    """
    if not donors:
        raise InvalidInputError(f"no device has a fit of {kind}; run `seqpoint calibrate kernels`")
    devices = [find_device(name) for name in donors]
    family = np.array([1.0 if Machine.of(d).family == machine.family else _OTHER_FAMILY for d in devices])
    cool = np.array([not runs_hot(device) for device in devices])
    weights = np.where(cool, family, _HOT_CARD * family)
    each = np.repeat(weights[:, None], len(MODELS[kind].parameters), axis=1)
    if cool.any():
        efficiency = np.array([p.name == "efficiency" for p in MODELS[kind].parameters])
        each[np.outer(~cool, efficiency)] = 0.0
    logs = np.log([donor.theta for donor in donors.values()])
    theta = np.exp((each * logs).sum(axis=0) / each.sum(axis=0))
    votes: dict[tuple[int, int], float] = {}
    for donor, weight in zip(donors.values(), family.tolist(), strict=True):
        votes[donor.tile] = votes.get(donor.tile, 0.0) + weight
    tile = max(sorted(votes), key=lambda one: votes[one])
    return Fit(tuple(theta.tolist()), tile, 0, _NO_SPREAD)
