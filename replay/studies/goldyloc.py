"""Independent GEMMs of GOLDYLOC's kind (arXiv 2409.02227), and `concurrent_gemms` on them.

A row of `datasets/workloads/goldyloc.toml` becomes a synthetic trace: equal GEMMs one after another on a stream, each
with the kernel that is fastest alone. `reproduce` returns our published figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_toml, typed_tables
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.gemms import Gemm
from replay.gemms.tuning import DEGREES, GoKernel, go_kernels
from replay.studies.workloads import layer_trace, step_ns
from replay.workloads.architecture import LARGEST, read_or_shipped
from replay.workloads.program import KernelCall

Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
#: Time from one call to the next, ns, and what makes it so short that only device work counts, as in a graph.
_CALL_NS, _NO_HOST = 1_500, "scale_host:0.01"
_DTYPE, _ELEMENT = "fp32", ("float", 4)
#: Gain of a degree above one after another that counts, and loss that does not.
_ROUNDING = 1e-3


class GoldylocWorkloadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal GEMMs that do not depend on each other, in a file of workloads."""

    count: Annotated[int, msgspec.Meta(ge=2, le=DEGREES[-1])]
    gemm: tuple[Size, Size, Size]
    source: str


@dataclass(frozen=True)
class IndependentGemms:
    """Equal GEMMs that do not depend on each other, on a device."""

    name: str
    count: int
    gemm: Gemm
    device: Device

    def default(self, parameters: Parameters) -> GoKernel:
        """Return the kernel that is fastest alone."""
        return go_kernels([self.gemm], [1], device=self.device, parameters=parameters)[0]

    def trace(self, parameters: Parameters) -> Trace:
        """Return the trace of the GEMMs one after another."""
        default, gemm = self.default(parameters), self.gemm
        call = KernelCall(
            "gemm_fp32",
            "aten::mm",
            round(default.alone_ns),
            _CALL_NS,
            shape=(gemm.m, gemm.k),
            operands=((gemm.k, gemm.n),),
            workgroups=int(default.default.workgroups(gemm)[0]),
        )
        calls = [call] * self.count
        return layer_trace(self.name, self.device, calls, world_size=1, launch_ns=_CALL_NS, element=_ELEMENT)


@dataclass(frozen=True)
class GoldylocOutcome:
    """Speed-ups of a workload over one after another.

    Parameters
    ----------
    default, go : float
        All side by side with the kernels that are fastest alone, and with GO-kernels.
    auto, predicted : float
        With the degree that the what-if finds, and with the degree that sizes predict; GO-kernels where they gain.
    """

    default: float
    go: float
    auto: float
    predicted: float


def load_workloads(path: str | Path | None = None) -> Mapping[str, IndependentGemms]:
    """Read workloads from a TOML file in the layout of `datasets/workloads/goldyloc.toml`, by default that one."""
    return read_or_shipped(_read, path, "workloads/goldyloc.toml")


def _read(file: Path) -> Mapping[str, IndependentGemms]:
    content = read_toml(file, "workloads")
    try:
        device = find_device(str(content.get("device", "")))
    except (InvalidInputError, NotFoundError) as error:
        raise InvalidInputError(f"{file}: device: {error}") from error
    tables = typed_tables(content, "workloads", GoldylocWorkloadTable, file)
    return {
        name: IndependentGemms(name, table.count, Gemm(*table.gemm, dtype=_DTYPE), device)
        for name, table in tables.items()
    }


def outcome_of(workload: IndependentGemms, parameters: Parameters) -> GoldylocOutcome:
    """Return the speed-ups of a workload, by the what-if on its trace."""
    degree = next(each for each in DEGREES if each >= workload.count)
    options = (f"{degree}:default", f"{degree}:go", "auto:go", "predicted:go")
    texts = [f"{_NO_HOST}+concurrent_gemms:{option}" for option in options]
    times = step_ns(workload.trace(parameters), [_NO_HOST, *texts], parameters)
    return GoldylocOutcome(*(times[_NO_HOST] / times[text] for text in texts))


def reproduce(parameters: Parameters, workloads: Mapping[str, IndependentGemms]) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/goldyloc.toml`."""
    outcomes = [outcome_of(workload, parameters) for workload in workloads.values()]
    default, best = (np.array([getattr(each, name) for each in outcomes]) for name in ("default", "auto"))
    return {
        "go_over_default_mean": _geometric_mean(best / default),
        "go_over_default_most": float((best / default).max()),
        "go_over_sequential_mean": _geometric_mean(best),
        "go_over_sequential_most": float(best.max()),
        "default_over_sequential": _geometric_mean(default),
        "never_slower": float(sum(min(each.auto, each.predicted) >= 1.0 - _ROUNDING for each in outcomes)),
        "tuned": float(sum(each.go > each.default * (1.0 + _ROUNDING) for each in outcomes)),
    }


def _geometric_mean(values: np.ndarray) -> float:
    return float(np.exp(np.log(values).mean()))
