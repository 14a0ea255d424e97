"""Device what-ifs: another device of the catalogue, other links, or other figures of the device.

Durations are re-timed relative to the trace: a traced duration is scaled by the ratio of the models' durations on the
two devices. Kernels may reach another efficiency on the new device; the interval of a projection covers that. These
what-ifs give the same durations in any order (`replay.costs.hardware`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.costs.architectures import architecture_notes
from replay.costs.hardware import with_hardware
from replay.costs.host import HostChoice
from replay.costs.kernels.predictor import KernelCalibration
from replay.costs.retiming import arithmetic_tasks, one_unit_tasks, source_device
from replay.costs.wire_time import collective_models, link_slowdowns, waits_apart
from replay.graph.graph import KernelGraph, TaskKind
from replay.what_ifs.registry import parse_what_if
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, split_words, what_if_text

_FP32 = tuple(DTYPES).index("fp32")
_FACTOR = Argument("factor", "new value over that of the device", "number")
#: Smallest factor of the power limit: no device runs on less of it.
_LEAST_POWER = 0.05


@recipe(
    "device",
    "scale_device:H100-SXM5-80GB",
    Argument("device", "name of a device (`seqpoint devices` lists them)"),
    Argument("host", "keep, a factor of host time, or a device whose typical launch cost to take", default=""),
)
def scale_device(name: str | Device, host: str = "") -> WhatIf:
    """Re-time every device task for another device of the catalogue.

    - A matrix product, convolution or fused attention of known shape: T_new = T_old * M_new / M_old if T_old is at most
      M_old; what is longer than M_old stays. M is the model's duration on each device, at the rate that the device
      sustains in the kernel's data type.
    - The same kernels of unknown shape: the time above `product_floor_ns` follows those rates. Grids below one wave of
      workgroups follow the rate of one compute unit, and a note has their share of the time. A grid of whole multiples
      of the traced device's compute units is that of a persistent kernel: it follows the rates of the devices.
    - Every other kernel, and a copy on the device: the time above `kernel_floor_ns` follows the memory bandwidth that
      streaming kernels sustain. Floors depend on the vendor.
    - A collective: the time that its bytes need, by the model of collectives, follows the bandwidth of the links
      (between nodes: of the nodes' adapters). Latency and waiting stay.
    - Copies between host and device stay as they are.
    - The host stays that of the traced machine. In the interval its time varies by `host_machine_ratio`, the spread
      between machines. HOST says otherwise: ``keep`` takes the traced machine without that spread; a factor multiplies
      host time; a device's name multiplies it by the typical cost of a launch on machines with that device, over the
      cost with the traced device (`datasets/host_costs.toml`).

    Scaling to the same device changes nothing. Going there and back restores the traced durations.

    Not modelled: cache effects (`simulated_caches` before it does), power, and other kernels that a library would
    choose on the new device.

    Source: `replay.costs.retiming`; wave scaling as in Habitat (USENIX ATC 2021); docs/devices.md has the measured
    errors.

    Raises
    ------
    NotFoundError
        The catalogue has no such device; the message offers the nearest names.
    InvalidInputError
        The factor of host time is not within 0.001 to 1000.
    """
    target, choice = find_device(name) if isinstance(name, str) else name, HostChoice(host)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        source_device(graph)
        traced = graph.hardware.original.device
        assert traced is not None
        factor = choice.factor(traced, target, parameters) / graph.hardware.factor("host")
        moved = with_hardware(graph, parameters, device=target, factors={"host": factor})
        if moved is graph:
            return graph
        small = _one_unit_note(graph, moved.hardware.compute_units)
        notes = [
            f"scale_device: {choice.note(traced, parameters)}",
            *small,
            *_tf32_note(graph, traced, target),
            *architecture_notes(target),
            *_relatives_note(target, parameters),
        ]
        return moved.with_notes(notes)

    name = what_if_text("scale_device", target.name, *([host] if host else []))
    return WhatIf(name, transform, retimes=True)


#: How far to trust durations on a device, by what its nearest measured relatives are to it: of the errors of kinds of
#: operators in tests/accuracy/relatives.csv, the 10 % and the 90 % quantile.
_TRUST: Mapping[str, str] = MappingProxyType(
    {
        "sibling": "its siblings {}, which have the same compute units: by shape alone, operators are off by 4 to 10 %",
        "family": "relatives of its maker ({}): by shape alone, operators are off by 6 to 23 %",
        "other": "other devices ({}): by shape alone, operators are off by 10 to 43 %",
    }
)


def _relatives_note(target: Device, parameters: Parameters) -> list[str]:
    """Return a note on the devices from which durations on a device are carried over; empty if it was measured."""
    related, devices = parameters.calibration(KernelCalibration).relatives(target)
    if related == "fitted":
        return []
    shown = ", ".join(devices[:_SHOWN]) + (f" and {len(devices) - _SHOWN} more" if len(devices) > _SHOWN else "")
    return [f"scale_device: nobody measured kernels on {target.name}; they are from {_TRUST[related].format(shown)}"]


#: Relatives that the note names.
_SHOWN = 3


def _one_unit_note(graph: KernelGraph, units: int) -> list[str]:
    """Return a note on the time that follows the rate of one compute unit; empty without any."""
    tasks = graph.tasks
    small = one_unit_tasks(graph, units)
    if units == graph.hardware.compute_units or not small.any():
        return []
    share = 100 * tasks.duration_ns[small].sum() / max(tasks.duration_ns[graph.on_device()].sum(), 1e-9)
    return [
        f"scale_device: {int(small.sum())} products of unknown shape and less than a wave of workgroups, {share:.1f} % "
        "of the time of devices, follow the rate of one compute unit"
    ]


def _tf32_note(graph: KernelGraph, traced: Device, target: Device) -> list[str]:
    """Return a note on products in FP32 that libraries may compute in TF32 on the other device; empty if none may."""
    tasks = graph.tasks
    products = arithmetic_tasks(graph) & (tasks.dtype == _FP32)
    if "tf32_tflops" in traced.figures or "tf32_tflops" not in target.figures or not products.any():
        return []
    share = round(100 * tasks.duration_ns[products].sum() / max(tasks.duration_ns[graph.on_device()].sum(), 1e-9))
    return [
        f"scale_device: {int(products.sum())} products in fp32, {share} % of the time of devices, stay in fp32; "
        f"{target.name} may compute them in TF32: +change_dtype:fp32->tf32"
    ]


def with_host(what_ifs: Sequence[WhatIf], host: str) -> list[WhatIf]:
    """Return what-ifs in which each `scale_device` without a host has this one.

    Parameters
    ----------
    what_ifs : sequence of WhatIf
        What-ifs, whose names parse to the same what-ifs.
    host : str
        As the argument of `scale_device`.

    Raises
    ------
    InvalidInputError
        No what-if moves the job to another device without saying what its host is.

    Examples
    --------
    >>> [what_if.name for what_if in with_host([scale_links(2.0), scale_device("MI300X")], "0.8")]
    ['scale_links:2', 'scale_device:MI300X:0.8']
    """
    HostChoice(host)
    changed = [_with_host(what_if, host) for what_if in what_ifs]
    if all(new is old for new, old in zip(changed, what_ifs, strict=True)):
        raise InvalidInputError(f"host {host!r}: no what-if has a scale_device without a host, so it changes nothing")
    return changed


def _with_host(what_if: WhatIf, host: str) -> WhatIf:
    words = [split_words(step) for step in what_if.steps]
    named = [[*step, host] if step[0] == "scale_device" and len(step) == 2 else step for step in words]
    if named == words:
        return what_if
    whole = parse_what_if("+".join(what_if_text(*step) for step in named))
    return replace(whole, title=what_if.title, parameters=what_if.parameters)


@recipe("communication", "scale_links:2", Argument("factor", "new link bandwidth over old", "number"))
def scale_links(factor: float) -> WhatIf:
    """Scale the bandwidth of the links between devices, and of the network between nodes, by FACTOR.

    Of a collective, only the time that its bytes need by the model of collectives scales. Its latency, and the wait for
    other ranks, stay. If the group of known bytes is unknown, all ranks of the job are taken for it. If their number is
    unknown too, two ranks are, which need the least time. If bytes or kind are unknown, a share of the time above
    `collective_latency_ns` is taken for wire time: `collective_wire_share`, or `collective_wire_share_waiting` if the
    other ranks are not in the graph. The ranges of all of these are in the interval.

    Not modelled: another algorithm that the communication library would choose.

    Source: `replay.costs.collectives`, fitted to measurements (docs/durations.md).

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    check_factor("scale_links", factor)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        notes = [_wire_note(graph, parameters)] if factor != 1.0 else []
        return with_hardware(graph, parameters, factors={"links": factor}).with_notes(notes)

    return WhatIf(what_if_text("scale_links", factor), transform, retimes=True)


def _wire_note(graph: KernelGraph, parameters: Parameters) -> str:
    """Return which share of the time of collectives follows the links, for people."""
    tasks = graph.tasks
    rows = np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE)
    if not len(rows):
        return "scale_links: the iteration has no collective"
    models = collective_models(graph, parameters).select(rows)
    slowdown = link_slowdowns(graph, graph.hardware)[rows]
    duration, total = tasks.duration_ns[rows], np.maximum(models.total_ns(slowdown), 1e-9)
    wire = models.wire_ns * slowdown * np.minimum(duration / total, 1.0)
    sized = models.is_known
    share = wire[sized].sum() / max(duration[sized].sum(), 1e-9)
    text, others = f"scale_links: {int(sized.sum())} of {len(rows)} collectives are of known bytes", "the others"
    if graph.hardware.original.device is None:
        text, others = (
            "scale_links: the trace names no device (--device NAME), so wire times are unknown",
            "collectives",
        )
    if sized.any():
        text += f", which need {round(100 * share)} % of their time by the model; latency and waiting stay"
    if (sized & models.is_assumed).any():
        ranks = (
            f"all {graph.world_size} ranks of the job are" if graph.world_size else "two ranks, which need least, are"
        )
        text += f"; {int((sized & models.is_assumed).sum())} do not name their group, for which {ranks} taken"
    if not sized.all():
        latency = round(parameters["collective_latency_ns"] / 1000)
        apart = waits_apart(graph)[rows[~sized]].any()
        guess = round(100 * parameters["collective_wire_share" if apart else "collective_wire_share_waiting"])
        text += f"; of {others}, {guess} % of the time above {latency} us is taken for the bytes"
    return text


@recipe("device", "scale_clock:0.8", _FACTOR)
def scale_clock(factor: float) -> WhatIf:
    """Scale the clock of the compute units by FACTOR; memory and links stay.

    Compute-bound kernels follow the clock, and so do the parts of known-shape kernels that are latency.

    Not modelled: the power limit, which may not allow a higher clock (`limit_power`).

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _with_factor("scale_clock", "clock", factor)


@recipe("device", "scale_compute_units:0.5", _FACTOR)
def scale_compute_units(factor: float) -> WhatIf:
    """Scale the number of compute units by FACTOR, rounded to a whole number; memory and links stay.

    Not modelled: another grid that a library would choose for that number.

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _with_factor("scale_compute_units", "compute_units", factor)


@recipe("device", "scale_memory_bandwidth:1.5", _FACTOR)
def scale_memory_bandwidth(factor: float) -> WhatIf:
    """Scale the bandwidth of the device memory by FACTOR; compute units and links stay.

    Not modelled: memory latency and caches, which stay.

    Source: `replay.costs.retiming`.

    Raises
    ------
    InvalidInputError
        `factor` is not within 1e-6 to 1e6.
    """
    return _with_factor("scale_memory_bandwidth", "memory", factor)


def _with_factor(name: str, figure: str, factor: float) -> WhatIf:
    check_factor(name, factor)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        source_device(graph)
        return with_hardware(graph, parameters, factors={figure: factor})

    return WhatIf(what_if_text(name, factor), transform, retimes=True)


@recipe("device", "limit_power:0.7", Argument("factor", "new power limit over today's", "number"))
def limit_power(factor: float) -> WhatIf:
    """Multiply the power limit of every device by FACTOR.

    A task draws a share of today's limit, by the resource that bounds it: `power_share_compute_bound`,
    `power_share_memory_bound` or `power_share_collective` of `datasets/parameters.toml`, all assumed. If the tasks on a
    device together exceed the limit, the clock falls with the third root of the excess. Compute-bound kernels slow with
    the clock; memory and links do not. A kernel that alone exceeds the limit has a longer isolated duration.

    A factor of 1 changes nothing. Factors multiply: 0.5 twice is 0.25, and 2 after 0.5 restores the traced durations.
    On another device, shares are of the limit of that device.

    Not modelled: what the limit already cost in the recording, idle power, temperature, and a clock that rises with the
    limit.

    Source: dynamic power grows with V^2 f, and V about with f; the shares are assumptions. Given the mean power of a
    job, times at lower limits err by 3 % (V100) and 2 % (P100) at the median, and energies by 6 and 4 %
    (`docs/accuracy.md`).

    Raises
    ------
    InvalidInputError
        `factor` is not within 0.05 to 1e6.
    """
    check_factor("limit_power", factor, least=_LEAST_POWER)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        return with_hardware(graph, parameters, factors={"power": factor})

    return WhatIf(what_if_text("limit_power", factor), transform, retimes=True)
