"""Measured training steps: a table with a row a step, in the layout of vTrain's published measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path

from profilers.errors import InvalidInputError
from replay.jobs.architecture import Transformer
from replay.measured_rows import Row, measured_count, measured_rows
from replay.training.job import Layout, TrainingJob

__all__ = ["COLUMNS", "VOCABULARY", "MeasuredStep", "chosen_part", "read_steps"]

_TIME = "iteration time (ms)"
#: Whole numbers of 1 or more, then the measured time.
_COUNTS = (
    "# GPUs",
    "global batch",
    "micro batch",
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "tensor parallelism",
    "data parallelism",
    "pipeline parallelism",
)
#: Columns of a table of measured steps.
COLUMNS = (*_COUNTS, _TIME)
#: Of GPT-2, 50257 filled up.
VOCABULARY = 51200
_FEEDFORWARD = 4
#: Of a number, at most; and characters that a message repeats.
_DIGITS, _SHOWN = 6, 40


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step.

    Parameters
    ----------
    job : TrainingJob
    seconds : float
    source : str
        File and row.
    """

    job: TrainingJob
    seconds: float
    source: str

    @property
    def configuration(self) -> str:
        """Its numbers, in the order of the columns."""
        job, model, layout = self.job, self.job.model, self.job.layout
        batch = (job.global_batch, job.micro_batch)
        sizes = (model.hidden, model.heads, model.layers, job.length)
        split = (layout.tensor, layout.data, layout.pipeline)
        return ",".join(map(str, (layout.devices, *batch, *sizes, *split)))

    @property
    def digest(self) -> str:
        """What tells this measurement from others."""
        return sha256(f"{self.configuration},{self.seconds:.9f}".encode()).hexdigest()[:10]


def read_steps(path: str | Path, node_devices: int = 8) -> list[MeasuredStep]:
    """Read measured steps from a CSV file, or from every fitting one in a folder.

    Parameters
    ----------
    path : str or Path
    node_devices : int
        Devices of a node, where a job has more than that.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column is missing; there is no row; or a row cannot be: it is named, with
        what is accepted.
    """
    return measured_rows(path, COLUMNS, lambda place, row: _row(place, row, node_devices))


def _row(place: str, row: Row, node_devices: int) -> MeasuredStep:
    try:
        devices, batch, micro, hidden, heads, layers, length, *split = (
            measured_count(row, name, _DIGITS) for name in _COUNTS
        )
        layout = Layout(split[0], split[1], split[2], node_devices)
        if layout.devices != devices:
            raise InvalidInputError(
                f"tensor {layout.tensor} x data {layout.data} x pipeline {layout.pipeline} parallelism is "
                f"{layout.devices}, not the {devices} of # GPUs"
            )
        model = Transformer("gpt", "megatron", layers, hidden, heads, _FEEDFORWARD * hidden, VOCABULARY)
        return MeasuredStep(TrainingJob(model, length, batch, micro, layout), _milliseconds(row) / 1e3, place)
    except InvalidInputError as error:
        raise InvalidInputError(f"{place}: {error}") from error


def _milliseconds(row: Row) -> float:
    try:
        found = float(row[_TIME] or "")
    except ValueError:
        found = 0.0
    if not (isfinite(found) and found > 0):
        raise InvalidInputError(f"{_TIME} is {(row[_TIME] or '')[:_SHOWN]!r}; it must be a number above zero")
    return found


def chosen_part(measured: Sequence[MeasuredStep], share: float) -> list[MeasuredStep]:
    """Return a share of the measurements, chosen by a hash of their configurations: no time is looked at.

    Examples
    --------
    >>> chosen_part([], 0.1)
    []
    """
    order = sorted(measured, key=lambda one: (sha256(one.configuration.encode()).hexdigest(), one.seconds))
    return order[: int(len(measured) * share)]
