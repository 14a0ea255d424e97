"""Host time on another machine, from what launches cost on machines with each device.

The host of a device is not in its data sheet: machines with one device differ. `HostCosts` holds the measured cost of
launch calls, and `host_factor` reads what a user says of the host of another device.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml, typed_table
from replay.calibration.parameters import Parameters

#: Text that keeps the host times of the traced machine.
KEEP = "keep"
#: Least and largest factor of host time.
_MIN_FACTOR, _MAX_FACTOR = 1e-3, 1e3


class _LaunchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `datasets/host_costs.toml`, whose head explains its keys."""

    device: str
    launches: int
    launch_us: float
    source: str
    host_us: float | None = None


class _HostFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    launches: list[_LaunchRow]


@dataclass(frozen=True)
class HostCosts:
    """Measured duration of launch calls.

    Parameters
    ----------
    launch_us : mapping of str to tuple of float
        Median duration of launch calls in each trace, us, by the device of the trace.
    """

    launch_us: Mapping[str, tuple[float, ...]] = field(hash=False)

    def typical_us(self, device: Device) -> float:
        """Return the median over traces of the duration of a launch call.

        Parameters
        ----------
        device : Device
            Device of the traces.

        Raises
        ------
        NotFoundError
            No trace of this device was measured; the message lists the devices that were.

        Examples
        --------
        >>> load_host_costs().typical_us(find_device("V100-SXM2-16GB"))
        8.0
        """
        if device.name not in self.launch_us:
            raise NotFoundError(
                f"what a launch costs was not measured on a machine with {device.name}, only with "
                f"{', '.join(self.launch_us)}; give keep or a factor of host time"
            )
        return float(np.median(self.launch_us[device.name]))


def read_host_costs(path: Path) -> HostCosts:
    """Read costs of launch calls.

    Parameters
    ----------
    path : Path
        TOML file in the layout of `datasets/host_costs.toml`.
    """
    rows = typed_table(read_toml(path, "host costs"), _HostFile, str(path)).launches
    devices = dict.fromkeys(row.device for row in rows)
    return HostCosts(
        MappingProxyType({device: tuple(row.launch_us for row in rows if row.device == device) for device in devices})
    )


@cache
def load_host_costs() -> HostCosts:
    """Return the shipped costs of launch calls."""
    return read_host_costs(dataset_path("host_costs.toml"))


@dataclass(frozen=True)
class HostChoice:
    """What a user says of the host of another device.

    Parameters
    ----------
    text : str
        Empty for the traced machine with the spread between machines, ``keep`` for the traced machine, a factor of host
        time, or the name of a device for what launches cost on machines with it.

    Raises
    ------
    InvalidInputError
        The text is a factor that is not within 0.001 to 1000.
    NotFoundError
        The text names no device of the catalogue.
    """

    text: str = ""

    def __post_init__(self) -> None:
        if self.text in ("", KEEP):
            return
        try:
            factor = float(self.text)
        except ValueError:
            try:
                find_device(self.text)
            except NotFoundError as error:
                raise NotFoundError(f"host {self.text!r} is not keep, no factor, and {error}") from error
            return
        if not (math.isfinite(factor) and _MIN_FACTOR <= factor <= _MAX_FACTOR):
            raise InvalidInputError(
                f"host: a factor of {factor:g}; give one from {_MIN_FACTOR:g} to {_MAX_FACTOR:g}, keep, or a device"
            )

    def factor(self, traced: Device, target: Device, parameters: Parameters) -> float:
        """Return the host time on the other machine over the host time of the trace.

        Parameters
        ----------
        traced : Device
            Device of the trace.
        target : Device
            Device to move to.
        parameters : Parameters
            `host_machine_ratio` is the spread between machines. With the costs of launch calls.

        Raises
        ------
        NotFoundError
            What launches cost was not measured for the device of the host or of the trace.
        """
        spread = parameters["host_machine_ratio"]
        if not self.text:
            return spread if target.name != traced.name else 1.0
        if self.text == KEEP:
            return 1.0
        try:
            return float(self.text)
        except ValueError:
            costs = parameters.calibration(HostCosts)
            return spread * costs.typical_us(find_device(self.text)) / costs.typical_us(traced)

    def note(self, traced: Device, parameters: Parameters) -> str:
        """Return what is taken for the host, for people.

        Parameters
        ----------
        traced : Device
            Device of the trace.
        parameters : Parameters
            As for `factor`.
        """
        known = parameters.known.get("host_machine_ratio")
        spread = "" if known is None else f" ({known.low:g} to {known.high:g} times)"
        if not self.text:
            return (
                f"the host keeps the times of the traced machine; the interval has the spread between machines{spread}"
                "; --host keep, a factor or a device says otherwise"
            )
        if self.text == KEEP:
            return "the host keeps the times of the traced machine, also in the interval"
        try:
            return f"host times are multiplied by {float(self.text):g}, as given"
        except ValueError:
            device, costs = find_device(self.text), parameters.calibration(HostCosts)
            new, old = costs.typical_us(device), costs.typical_us(traced)
            return (
                f"host times are multiplied by {new / old:.3g}: a launch typically takes {new:.3g} us on machines with "
                f"{device.name}, {old:.3g} us with {traced.name}; the interval has the spread between machines{spread}"
            )
