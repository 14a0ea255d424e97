"""Operators of HLO, and their executions by the launches of their kernels."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from profilers.readers.common.numbers import integer
from profilers.readers.common.reader import Sink
from profilers.readers.common.recording import text_list
from profilers.readers.xplane.planes import BATCH, Event, HloMessage, text
from profilers.trace.arrays import MISSING

#: Kineto's names of the types of elements by XLA's numbers (xla_data.proto).
_DTYPES = {
    **{1: "bool", 2: "signed char", 3: "short", 4: "int", 5: "long", 6: "unsigned char", 10: "c10::Half", 11: "float"},
    **{12: "double", 15: "c10::complex<float>", 16: "c10::BFloat16", 18: "c10::complex<double>"},
    **{19: "c10::Float8_e5m2", 20: "c10::Float8_e4m3fn", 25: "c10::Float8_e4m3fnuz"},
}


class Operator(NamedTuple):
    """An operator of HLO, with its program and its name in JAX or TensorFlow; or one of TensorFlow alone."""

    name: str
    program: int | None = None
    module: str = ""
    framework: str = ""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Operator | None":
        """Return the operator that an event names, or None.

        Examples
        --------
        >>> Operator.of({"hlo_op": "dot.1", "tf_op": "XlaModule:", "name": "jit(f)/dot"}).framework
        'jit(f)/dot'
        >>> Operator.of({"tf_op": "model/dense/MatMul:MatMul"}).name
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


class _Launch(NamedTuple):
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
        self._launches: list[_Launch] = []
        self._operators: dict[int, Operator] = {}
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
                self._launches.append(_Launch(process, thread, event.start, event.end, correlation))
                self._note(correlation, event)

    def _note(self, correlation: int, event: Event) -> None:
        if (operator := Operator.of(event.facts)) is not None:
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

    def _spans(self) -> Iterator[tuple[int, int, int, int, Operator]]:
        """Yield process, thread, start, end and operator of each execution."""
        span: tuple[int, int, int, int, Operator] | None = None
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

    def _operands(self, operators: set[Operator]) -> dict[Operator, tuple[str | None, str | None]]:
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
