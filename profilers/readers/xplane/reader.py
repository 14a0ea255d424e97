"""`XPlaneReader`: profiles of JAX and TensorFlow, which XLA's profiler writes as `.xplane.pb`.

On a GPU, the lines named ``Stream #N`` are the device's work, and other lines repeat it. A TPU has no such lines:
there the line ``XLA Ops`` is the work. No operator encloses a launch on its thread. But kernels and launches name the
operator of HLO that they belong to, from which `Executions` makes the rows of ``ops``.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from profilers.devices import load_devices
from profilers.readers.common.numbers import integer, positive
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import Output, text_list
from profilers.readers.common.source import open_source
from profilers.readers.common.xla import DERIVED, api_of, copy_facts, device_step, launch_facts, step_name, stream_of
from profilers.readers.xplane.planes import BATCH, Event, HloMessage, Line, Plane, read_planes, text
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import constant
from profilers.trace.schema import OWN_RANK, PYTHON_FUNCTION
from profilers.trace.trace import DeviceProperties, TraceMeta

#: Kineto's names of the types of elements by XLA's numbers (xla_data.proto).
_DTYPES = {
    **{1: "bool", 2: "signed char", 3: "short", 4: "int", 5: "long", 6: "unsigned char", 10: "c10::Half", 11: "float"},
    **{12: "double", 15: "c10::complex<float>", 16: "c10::BFloat16", 18: "c10::complex<double>"},
    **{19: "c10::Float8_e5m2", 20: "c10::Float8_e4m3fn", 25: "c10::Float8_e4m3fnuz"},
}


class HloOperator(NamedTuple):
    """An operator of HLO, with its program and its name in JAX or TensorFlow; or one of TensorFlow alone."""

    name: str
    program: int | None = None
    module: str = ""
    framework: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "HloOperator | None":
        """Return the operator that an event names, or None.

        Examples
        --------
        >>> HloOperator.of({"hlo_op": "dot.1", "tf_op": "XlaModule:", "name": "jit(f)/dot"}).framework
        'jit(f)/dot'
        >>> HloOperator.of({"tf_op": "model/dense/MatMul:MatMul"}).name
        'model/dense/MatMul'
        """
        if "hlo_op" not in facts and "tf_op" not in facts:
            return None
        names = ("hlo_op", "tf_op", "name", "hlo_module")
        hlo, framework, jax, module = (fact if isinstance(fact := facts.get(name), str) else "" for name in names)
        if framework.startswith("XlaModule"):
            framework = jax
        if not hlo and not (framework and "tf_op" in facts):
            return None
        return cls(hlo or framework.split(":")[0], integer(facts.get("program_id")), module, framework)

    def args(self) -> str | None:
        """Return module, program and name in the framework as JSON."""
        return to_json({"hlo_module": self.module, "program_id": self.program, "framework_op": self.framework})


def to_json(facts: Mapping[str, Any]) -> str | None:
    """Return facts as a JSON object without those that are missing or empty, None if none is left."""
    members = {name: value for name, value in facts.items() if value is not None and value != ""}
    return msgspec.json.encode(members).decode() if members else None


class _HloLaunch(NamedTuple):
    """A call that launches device work, on a thread of a process."""

    process: int
    thread: int
    start: int
    end: int
    correlation: int


class Executions:
    """The executions of operators, from the launches of their kernels.

    Launches that follow each other on a thread and belong to one operator are one execution of it, until the kernel
    recurs with which it begins.

    Attributes
    ----------
    programs : dict of int to bytes
        Programs of HLO by number, for the shapes of operands.
    """

    def __init__(self) -> None:
        self._launches: list[_HloLaunch] = []
        self._operators: dict[int, HloOperator] = {}
        self._kernels: dict[int, str | None] = {}
        self._same: dict[Any, Any] = {}
        self.programs: dict[int, bytes] = {}

    def add_work(self, events: Sequence[Event]) -> None:
        """Add kernels and copies, by which launches know what they launched."""
        for event in events:  # a Python loop over device work, 1 us each
            correlation = event.facts.get("correlation_id")
            if isinstance(correlation, int):
                self._kernels.setdefault(correlation, event.name)
                self._note(correlation, event)

    def add_launches(self, process: int, thread: int, events: Sequence[Event]) -> None:
        """Add calls of a thread."""
        for event in events:  # a Python loop over launches, 1 us each
            if event.start != MISSING and event.end >= event.start:
                correlation = event.facts["correlation_id"]
                self._launches.append(_HloLaunch(process, thread, event.start, event.end, correlation))
                self._note(correlation, event)

    def _note(self, correlation: int, event: Event) -> None:
        if (operator := HloOperator.of(event.facts)) is not None:
            self._operators.setdefault(correlation, self._same.setdefault(operator, operator))

    def write(self, sink: Sink) -> None:
        """Write the rows of ``ops``, which are no events of the file."""
        rows = list(self._spans())
        operators = [operator for *_, operator in rows]
        operands = self._operands(set(operators))
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            process, thread, start, end = (np.array(values, np.int64) for values in list(zip(*batch, strict=True))[:4])
            named = operators[first : first + BATCH]
            columns = {"process": process, "thread": thread, "start_ns": start, "dur_ns": end - start}
            texts: dict[str, list[str | None]] = {
                "name": [operator.name for operator in named],
                "args": [operator.args() for operator in named],
                "shapes": [operands[operator][0] for operator in named],
                "dtypes": [operands[operator][1] for operator in named],
            }
            sink.write("ops", {**columns, **{name: text_list(values) for name, values in texts.items()}})

    def _spans(self) -> Iterator[tuple[int, int, int, int, HloOperator]]:
        """Yield process, thread, start, end and operator of each execution."""
        span: tuple[int, int, int, int, HloOperator] | None = None
        first: str | None = None
        for launch in sorted(self._launches):  # a Python loop over launches, 1 us each
            operator, kernel = self._operators.get(launch.correlation), self._kernels.get(launch.correlation)
            if operator is None:
                continue
            if span is not None and (*span[:2], span[4]) == (*launch[:2], operator) and kernel != first:
                span = (*span[:3], max(span[3], launch.end), operator)
                continue
            if span is not None:
                yield span
            span, first = (*launch[:4], operator), kernel
        if span is not None:
            yield span

    def _operands(self, operators: set[HloOperator]) -> dict[HloOperator, tuple[str | None, str | None]]:
        """Return shapes and types of the operands of operators as JSON, None if their program is not there."""
        programs = {operator.program for operator in operators if operator.program is not None}
        known = {program: _operands(self.programs[program]) for program in programs if program in self.programs}
        empty: dict[str, tuple[str, str]] = {}
        return {
            operator: known.get(-1 if operator.program is None else operator.program, empty).get(
                operator.name, (None, None)
            )
            for operator in operators
        }


def _operands(program: bytes) -> dict[str, tuple[str, str]]:
    """Return shapes and types of the operands of each instruction of a program, as JSON."""
    try:
        computations = HloMessage.FromString(program).hlo_module.computations
    except DecodeError:
        return {}
    instructions = [instruction for computation in computations for instruction in computation.instructions]
    shapes = {instruction.id: instruction.shape for instruction in instructions}
    operands = {}
    for instruction in instructions:  # a Python loop over instructions, 5 us each
        known = [shapes[number] for number in instruction.operand_ids if number in shapes]
        dtypes = [_DTYPES.get(shape.element_type, "unknown") for shape in known]
        operands[text(instruction.name)] = json.dumps([list(s.dimensions) for s in known]), json.dumps(dtypes)
    return operands


#: The first plane of a file: perhaps its id, then its name, which starts as no other protobuf has it there.
_START = re.compile(
    rb"\n[\x80-\xff]{0,9}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12[\x05-\x7f](?:/host:|/device:|Task Environment)"
)
_DEVICE = re.compile(r"^/device:[^:]+:(\d{1,9})(?!\d)")
_METADATA = "/host:metadata"
_TPU_WORK, _TPU_STEPS = "XLA Ops", "Steps"
_ANNOTATION = "user_annotation"
#: Facts of an event that have a column.
_TYPED = frozenset({"correlation_id", "kernel_details", "step_num"})
_LAUNCH_COLUMNS = ("workgroups", "workgroup_size", "registers", "lds_bytes")
#: A device has the memory that the catalogue states, as a driver counts it: 192 GB are 206e9 bytes.
_LEAST_MEMORY, _MOST_MEMORY = 0.97, 1.08

Columns = dict[str, Any]


class XPlaneReader:
    """XPlane files (.xplane.pb) of JAX, TensorFlow and PyTorch/XLA: GPUs, TPUs and the threads of the host."""

    name = "xplane"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts with a plane that is named as XLA's profiler names it."""
        return _START.match(head.start) is not None

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`.

        Raises
        ------
        BrokenFileError
            The file holds no event that can be used, or unpacks to more than the limit.
        """
        out = Output(self.name, files, sink)
        profile = _Profile(out)
        with open_source(files[0], sink.limit_bytes) as stream, io.BufferedReader(stream, 1 << 20) as buffered:
            for data in read_planes(buffered, out.counts):
                sink.advance(stream.tell())
                profile.add(Plane(data, out))
            out.counts["truncated_files"] |= int(getattr(stream, "truncated", False))
        profile.executions.write(sink)
        meta = out.meta("XSpace", devices=profile.devices)
        return replace(meta, clock_base_ns=profile.clock_base_ns())


class _Profile:
    """The planes of a file on their way to a sink.

    Parameters
    ----------
    out : Output
        Takes the events.

    Attributes
    ----------
    executions : Executions
        Launches and kernels seen so far.
    devices : list of DeviceProperties
        Devices seen so far.
    """

    def __init__(self, out: Output) -> None:
        self._out = out
        self._hosts: Counter[str] = Counter()
        self._started_ns = self._latest_ns = 0
        self.executions = Executions()
        self.devices: list[DeviceProperties] = []

    def clock_base_ns(self) -> int:
        """Return the time at which the profile was started, 0 if the file does not count from it."""
        return self._started_ns if self._latest_ns < self._started_ns else 0

    def add(self, plane: Plane) -> None:
        """Write the events of a plane."""
        self._started_ns = integer(plane.facts.get("profile_start_time")) or self._started_ns
        self._latest_ns = max([self._latest_ns, *(line.start_ns for line in plane.lines)])
        if plane.name == _METADATA:
            self.executions.programs |= plane.programs
        if match := _DEVICE.match(plane.name):
            device = int(match[1])
            self.devices.append(_properties(device, plane.facts))
            self._add_device(plane, device)
        else:
            process = self._hosts[plane.name]
            self._hosts[plane.name] += 1
            for line in plane.lines:
                for events in plane.events(line):
                    self._write_host(process, line.number, events)

    def _add_device(self, plane: Plane, device: int) -> None:
        has_streams = any(stream_of(line.name) for line in plane.lines)
        for line in plane.lines:
            stream = stream_of(line.name)
            for events in plane.events(line):
                if stream is not None:
                    self._write_work(device, stream[0], events)
                elif not has_streams and line.name == _TPU_WORK:
                    self._write_leaves(device, line, events)
                elif not has_streams and line.name == _TPU_STEPS:
                    self._write_ranges([e._replace(name=device_step(e.name or "")) for e in events], device=device)
                elif line.name in DERIVED:
                    self._out.skip(len(events), "skipped_derived")
                else:
                    self._write_ranges(events, category=line.name or "unknown", device=device)

    def _write_work(self, device: int, stream: int, events: Sequence[Event]) -> None:
        """Write kernels and copies of a stream."""
        copies: list[Event] = []
        kernels: list[Event] = []
        for event in events:  # a Python loop over device work, 0.5 us each
            (kernels if _copied(event) is None else copies).append(event)
        self.executions.add_work(events)
        if kernels:
            self._write("kernels", kernels, {**_work(device, stream, kernels), **_launched(kernels)})
        if copies:
            directions, sizes = zip(*(_copied(event) or ("unknown", None) for event in copies), strict=True)
            columns = {"direction": text_list(directions), "bytes": _ints(sizes)}
            self._write("copies", copies, {**_work(device, stream, copies), **columns})

    def _write_leaves(self, device: int, line: Line, events: Sequence[Event]) -> None:
        """Write the operators of a TPU as kernels; those that enclose others, such as loops, as ranges."""
        ordered = sorted(events, key=lambda event: (event.start, -event.end))
        start, end = _times(ordered)
        long = np.flatnonzero((start != MISSING) & (end > start))
        encloses = np.zeros(len(ordered), bool)
        encloses[long[:-1]] = end[long[1:]] <= end[long[:-1]]
        self._write_ranges([ordered[row] for row in np.flatnonzero(encloses)], category=line.name, device=device)
        kernels = [ordered[row] for row in np.flatnonzero(~encloses)]
        self._write("kernels", kernels, _work(device, line.number, kernels))

    def _write_host(self, process: int, thread: int, events: Sequence[Event]) -> None:
        kinds: dict[str, list[Event]] = {"launches": [], "ops": [], "steps": [], PYTHON_FUNCTION: [], _ANNOTATION: []}
        instants = 0
        for event in events:  # a Python loop over events of the host, 1 us each
            kind = _host_kind(event)
            if kind in (PYTHON_FUNCTION, _ANNOTATION) and event.start == event.end != MISSING:
                instants += 1
            else:
                kinds[kind].append(event)
        self._out.skip(instants, "skipped_marker")
        thread_of = {"process": process, "thread": thread}
        launches = kinds["launches"]
        self.executions.add_launches(process, thread, launches)
        calls = {"api": text_list(api_of(e.name or "") for e in launches), **_correlated(launches)}
        self._write("launches", launches, calls, thread_of)
        self._write("ops", kinds["ops"], {}, thread_of)
        steps = [event._replace(name=step_name(event.name or "", event.facts["step_num"])) for event in kinds["steps"]]
        self._write_ranges(steps, _ANNOTATION, **thread_of)
        for category in (_ANNOTATION, PYTHON_FUNCTION):
            self._write_ranges(kinds[category], category=category, **thread_of)

    def _write_ranges(self, events: Sequence[Event], category: str = _ANNOTATION, **numbers: int) -> None:
        self._write("ranges", events, {"category": constant(category, len(events))}, numbers)

    def _write(
        self, kind: str, events: Sequence[Event], columns: Columns, numbers: Mapping[str, int] | None = None
    ) -> None:
        """Write events with the columns of their kind, and columns that hold the same number in every row."""
        if not events:
            return
        start, end = _times(events)
        same = {name: np.full(len(events), number) for name, number in (numbers or {}).items()}
        self._out.write(kind, {**_named(events), "start_ns": start, **same, **columns}, end)


def _host_kind(event: Event) -> str:
    """Return the kind of an event of the host, or the category of a range."""
    facts = event.facts
    if isinstance(facts.get("correlation_id"), int):
        return "launches"
    if isinstance(facts.get("step_num"), int):
        return "steps"
    if HloOperator.of(facts) is not None:
        return "ops"
    return PYTHON_FUNCTION if (event.name or "").startswith("$") else _ANNOTATION


def _copied(event: Event) -> tuple[str, int | None] | None:
    """Return direction and bytes of a copy, None for a kernel."""
    details = event.facts.get("memcpy_details") or event.facts.get("memset_details")
    return copy_facts(event.name or "", str(details or ""))


def _named(events: Sequence[Event]) -> Columns:
    """Return name and arguments of events; JAX on AMD names the descriptor of a kernel, not the kernel."""
    args = [to_json({name: value for name, value in event.facts.items() if name not in _TYPED}) for event in events]
    return {"name": text_list(e.name and e.name.removesuffix(".kd") for e in events), "args": text_list(args)}


def _times(events: Sequence[Event]) -> tuple[Ints, Ints]:
    start, end = zip(*((event.start, event.end) for event in events), strict=True) if events else ((), ())
    return np.array(start, np.int64), np.array(end, np.int64)


def _ints(values: Sequence[Any]) -> Ints:
    numbers = map(integer, values)
    return np.array([MISSING if number is None else number for number in numbers], np.int64)


def _correlated(events: Sequence[Event]) -> Columns:
    return {"correlation": _ints([event.facts.get("correlation_id") for event in events])}


def _work(device: int, stream: int, events: Sequence[Event]) -> Columns:
    rows = len(events)
    return {"device": np.full(rows, device), "stream": np.full(rows, stream), **_correlated(events)}


def _launched(events: Sequence[Event]) -> Columns:
    """Return grid, registers, local memory and occupancy of kernels."""
    texts = [str(event.facts.get("kernel_details", "")) for event in events]
    facts = {text: launch_facts(text) for text in set(texts)}
    occupancy = pa.array([facts[text]["occupancy"] for text in texts], pa.float32())
    return {"occupancy": occupancy, **{name: _ints([facts[text][name] for text in texts]) for name in _LAUNCH_COLUMNS}}


def _properties(device: int, facts: Mapping[str, Any]) -> DeviceProperties:
    """Return what a plane states of its device, and the name if it states one or its figures name one."""
    units, memory = positive(facts.get("core_count")), positive(facts.get("memory_size"))
    name = facts.get("device_type_string") or _name_by_figures(facts, units, memory)
    return DeviceProperties(OWN_RANK, device, str(name), units, memory)


def _name_by_figures(facts: Mapping[str, Any], units: int | None, memory: int | None) -> str:
    """Return the name of the device of the catalogue that has these figures; "" without one or with several.

    Of devices that differ in links alone, it is the first one.
    """
    vendor = str(facts.get("device_vendor", "")).casefold()
    devices = [
        device
        for device in load_devices().values()
        if units is not None
        and memory is not None
        and device.vendor.casefold() == vendor
        and {"compute_units", "memory_gb"} <= set(device.figures)
        and device.compute_units == units
        and _LEAST_MEMORY <= memory / (device.value("memory_gb") * 1e9) <= _MOST_MEMORY
    ]
    kinds = {(device.design, device.figures.get("clock_mhz")) for device in devices}
    return devices[0].name if len(kinds) == 1 else ""
