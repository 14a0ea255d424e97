"""Synthetic traces of layers and workloads, and the time that what-ifs give them: what every study runs.

A study turns a row of its table into kernels and collectives with the durations of the models. `layer_trace` writes
them as a trace, as `seqpoint synthesize` does. `step_ns` replays it as `seqpoint project` does. `load_study` reads the
workloads of the study of cache policies (arXiv 1910.00134), whose kernels last as long as their simulation says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from profilers.devices import find_device
from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.files import read_toml, typed_table
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.calls import Call
from replay.costs.operators import operator_of
from replay.engine.timeline import replay
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import KernelGraph, TaskKind
from replay.memory.graphs import simulated_kernels
from replay.memory.streams import stream_of
from replay.memory.system import memory_system
from replay.what_ifs import parse_what_if
from replay.workloads.architecture import read_or_shipped
from replay.workloads.program import KernelCall, SyntheticJob, SyntheticStep, Wait
from replay.workloads.program_trace import write_trace

#: From a call to its kernel: hardly more than the call itself, since studies are of device work.
_LAUNCH_NS = 1_500


def layer_trace(
    name: str,
    device: Device,
    calls: Sequence[KernelCall | Wait],
    *,
    world_size: int,
    launch_ns: int = _LAUNCH_NS,
    element: tuple[str, int] = ("BFloat16", 2),
) -> Trace:
    """Return the trace of a layer on one rank that stands for all ranks.

    Parameters
    ----------
    name : str
        Name of the layer.
    device : Device
        Device of every rank; one of the catalogue, since a trace holds its name.
    calls : sequence of KernelCall or Wait
        Program of the rank.
    world_size : int
        Ranks of the job.
    launch_ns : int
        Time from a call to the start of its kernel, if the kernel waits for nothing else.
    element : (str, int)
        Type of the elements, as profilers name it, and its bytes.
    """
    step = SyntheticStep(name, 1, 1, [calls], launch_ns)
    return write_trace(SyntheticJob(name, "study", [step], world_size, *element), device)


def layer_graph(trace: Trace, parameters: Parameters) -> KernelGraph:
    """Return the graph of the only iteration of a layer's trace.

    Parameters
    ----------
    trace : Trace
        Trace that `layer_trace` returned.
    parameters : Parameters
        Parameters of the contention model.
    """
    return build_graph(index_trace(trace), [0], parameters=parameters)


def step_ns(trace: Trace, what_ifs: Sequence[str], parameters: Parameters) -> Mapping[str, float]:
    """Return how long a layer takes under each what-if, ns, and as it is under ``"nothing"``.

    Parameters
    ----------
    trace : Trace
        Trace that `layer_trace` returned.
    what_ifs : sequence of str
        What-ifs as on the command line.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> calls = [KernelCall("gemm", "aten::mm", 10**6, 1500, 7, (8, 8), operands=((8, 8),))]
    >>> trace = layer_trace("product", find_device("MI300X"), calls, world_size=1)
    >>> dict(step_ns(trace, ["scale_kernels:gemm:0.5"], load_parameters()))
    {'nothing': 1001500.0, 'scale_kernels:gemm:0.5': 501500.0}
    """
    graph = layer_graph(trace, parameters)
    changed = {text: parse_what_if(text)(graph, parameters) for text in ("nothing", *what_ifs)}
    return {text: replay(each).makespan_ns for text, each in changed.items()}


#: Classes of workloads in the study.
CLASSES = ("memory-insensitive", "reuse-sensitive", "throughput-sensitive")
_HOST_NS = 1_500
_TYPES: Mapping[str, str] = MappingProxyType({"Float": "float", "Double": "double"})


class CallTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a file of workloads: operator, name of its kernel, shapes and values of its arguments."""

    op: str
    kernel: str
    shapes: tuple[tuple[int, ...], ...]
    values: tuple[str, ...] = ()


class PhaseTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Calls of a file of workloads that are repeated."""

    calls: tuple[CallTable, ...]
    times: int = 1


class WorkloadTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload of a file of workloads, whose head explains its keys."""

    class_: str = msgspec.field(name="class")
    source: str
    phases: tuple[PhaseTable, ...]
    element: str = "Float"


class StudyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of workloads."""

    device: str
    workloads: dict[str, WorkloadTable]


@dataclass(frozen=True)
class Workload:
    """A workload on a device.

    Parameters
    ----------
    name, class_ : str
        Name, and its class in the paper: one of `CLASSES`.
    device : Device
        Device of the catalogue.
    element : str
        ``"Float"`` or ``"Double"``.
    calls : tuple of KernelCall
        Calls, with the grids of their kernels and without durations.
    """

    name: str
    class_: str
    device: Device
    element: str
    calls: tuple[KernelCall, ...]

    def graph(self, parameters: Parameters) -> KernelGraph:
        """Return the graph of the trace of the workload."""
        return layer_graph(self.trace(parameters), parameters)

    def trace(self, parameters: Parameters) -> Trace:
        """Return the trace of the workload; its kernels last as long as their simulation says."""
        blank = self._trace(np.full(len(self.calls), _HOST_NS))
        graph = layer_graph(blank, parameters)
        rows = graph.tasks.kind == TaskKind.KERNEL
        times = simulated_kernels(graph, parameters).time_ns[rows]
        if np.isnan(times).any():
            call = self.calls[int(np.flatnonzero(np.isnan(times))[0])]
            raise InvalidInputError(f"{self.name}: the accesses of {call.op} of {call.shape} are unknown")
        return self._trace(np.maximum(np.round(times), 1).astype(np.int64))

    def _trace(self, durations: Iterable[int]) -> Trace:
        calls = [replace(call, duration_ns=int(ns)) for call, ns in zip(self.calls, durations, strict=True)]
        element = (self.element, 8 if self.element == "Double" else 4)
        return layer_trace(self.name, self.device, calls, world_size=1, element=element)


def load_study(path: str | Path | None = None) -> Mapping[str, Workload]:
    """Read a TOML file in the layout of `datasets/workloads/caching.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the table and the key are named.

    Examples
    --------
    >>> study = load_study()
    >>> len(study), study["FwLSTM"].calls[1].op, study["FwLSTM"].calls[1].workgroups
    (17, 'aten::linear', 32)
    """
    return read_or_shipped(_read, path, "workloads/caching.toml")


def _read(file: Path) -> Mapping[str, Workload]:
    table = typed_table(read_toml(file, "workloads of the caching study"), StudyTable, str(file))
    device = find_device(table.device)
    workloads = {}
    for name, row in table.workloads.items():
        if row.class_ not in CLASSES or row.element not in _TYPES:
            kinds = f"a class is one of {', '.join(CLASSES)}, an element one of {', '.join(_TYPES)}"
            raise InvalidInputError(f"{file}: workloads.{name}: {kinds}")
        calls = {call: _kernel_call(call, row.element, device) for phase in row.phases for call in phase.calls}
        order = [calls[call] for phase in row.phases for call in phase.calls * phase.times]
        workloads[name] = Workload(name, row.class_, device, row.element, tuple(order))
    return workloads


def _kernel_call(call: CallTable, element: str, device: Device) -> KernelCall:
    """Return a call whose kernel has the grid that its operator would be launched with; 1 if that is unknown."""
    operator = operator_of(Call(call.op, call.shapes, [_TYPES[element]] * len(call.shapes), call.values))
    stream = stream_of(operator, system=memory_system(device)) if operator else None
    return KernelCall(
        call.kernel, call.op, 1, _HOST_NS, shape=call.shapes[0], operands=call.shapes[1:], values=call.values,
        workgroups=stream.workgroups if stream else 1,
    )  # fmt: skip
