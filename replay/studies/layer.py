"""Synthetic traces of single layers, and the time that what-ifs give them: what every study runs.

A study turns a row of its table into kernels and collectives with the durations of the models. `layer_trace` writes
them as a trace, as `seqpoint synthesize` does. `step_ns` replays it as `seqpoint project` does.
"""

from collections.abc import Mapping, Sequence

from profilers.devices.catalogue import Device
from profilers.synthetic import KernelCall, SyntheticJob, SyntheticStep, Wait, write_trace
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import KernelGraph
from replay.what_ifs import parse_what_if

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
