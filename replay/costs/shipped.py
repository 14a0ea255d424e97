"""Shipped parameters with the shipped calibrations of kernels, collectives and hosts: the default of every command.

The front door (`seqpoint`) loads them once and passes them on as a value. No model loads them by itself.
"""

from functools import cache

from profilers.files import dataset_path
from replay.calibration.parameters import Parameters, read_parameters
from replay.costs.collectives import load_collectives
from replay.costs.host import load_host_costs
from replay.costs.kernels import load_calibration


@cache
def load_parameters() -> Parameters:
    """Return the shipped parameters at their nominal values, with the shipped calibrations.

    Examples
    --------
    >>> load_parameters()["dma_command_ns"]
    5500.0
    """
    parameters = read_parameters(dataset_path("parameters.toml"))
    for calibration in (load_calibration(), load_collectives(), load_host_costs()):
        parameters = parameters.with_calibration(calibration)
    return parameters
