"""Parameters of the models: where they come from, and the files that hold fitted ones."""

from replay.calibration.parameters import Parameter, Parameters, read_parameters

__all__ = ["Parameter", "Parameters", "read_parameters"]
