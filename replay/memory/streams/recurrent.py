"""Streams of recurrent networks: the pointwise kernel of a cell, and all kernels of a layer over time steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import (
    Memory,
    Operand,
    Stream,
    Tiles,
    bind,
    checked_sizes,
    operands,
    pieces,
    resident_workgroups,
    section,
)
from replay.memory.streams.products import bind_product, product_kernels

#: Gates of each cell.
GATES: Mapping[str, int] = {"lstm": 4, "gru": 3}
_THREADS = 256
#: Arrays that the pointwise kernels of PyTorch read and write (`RNN.cu`), with their elements for each hidden element.
_FORWARD: Mapping[str, tuple[dict[str, int], dict[str, int]]] = {
    "lstm": ({"input_gates": 4, "hidden_gates": 4, "cell": 1}, {"hidden": 1, "next_cell": 1, "workspace": 4}),
    "gru": ({"input_gates": 3, "hidden_gates": 3, "previous": 1}, {"hidden": 1, "workspace": 5}),
}
_BACKWARD: Mapping[str, tuple[dict[str, int], dict[str, int]]] = {
    "lstm": (
        {"hidden_gradient": 1, "next_cell_gradient": 1, "cell": 1, "next_cell": 1, "workspace": 4},
        {"gate_gradients": 4, "cell_gradient": 1},
    ),
    "gru": (
        {"hidden_gradient": 1, "workspace": 5},
        {"gate_gradients": 3, "hidden_gate_gradients": 3, "previous_gradient": 1},
    ),
}
#: FLOP of a gate of a hidden element (`replay.costs.operators`).
_GATE_FLOPS = 6.0


def cell(kind: str, rows: int, hidden: int, element_bytes: int = 4, *, backward: bool = False) -> Stream:
    """Return the stream of the pointwise kernel of a cell, with a thread for each hidden element.

    Parameters
    ----------
    kind : str
        ``lstm`` or ``gru``.
    rows, hidden : int
        Sequences of a batch, and hidden elements.
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass.

    Raises
    ------
    InvalidInputError
        The cell is unknown, or a size is below 1.

    Examples
    --------
    >>> [operand.name for operand in cell("lstm", 64, 512).operands]
    ['input_gates', 'hidden_gates', 'cell', 'hidden', 'next_cell', 'workspace']
    """
    checked_sizes(rows=rows, hidden=hidden)
    if kind not in GATES:
        raise InvalidInputError(f"cell {kind!r}; one of {', '.join(GATES)}")
    reads, writes = (_BACKWARD if backward else _FORWARD)[kind]
    columns = {**reads, **writes}
    arrays = operands(**{name: rows * hidden * count * element_bytes for name, count in columns.items()})
    elements = rows * hidden

    def tiles(workgroups: Ints, step: int) -> Tiles:
        begin = workgroups * _THREADS
        number, row, first, last = pieces(begin, np.minimum(begin + _THREADS, elements), hidden)
        several = []
        for index, (name, count) in enumerate(columns.items()):
            offset = (row * count)[:, None] * hidden + np.arange(count) * hidden + first[:, None]
            several.append(
                Tiles.of(workgroups[number][:, None], arrays[index].address + offset * element_bytes, index,
                         width=((last - first) * element_bytes)[:, None], is_write=name in writes)
            )  # fmt: skip
        return Tiles.joined(*several)

    return Stream(
        f"{kind} cell{' backward' if backward else ''} {rows} x {hidden}",
        arrays,
        workgroups=-(-elements // _THREADS),
        steps=1,
        tiles=tiles,
        flops=_GATE_FLOPS * GATES[kind] * elements * (2 if backward else 1),
        threads=_THREADS,
        vector_bytes=element_bytes,
        residency=resident_workgroups(_THREADS),
        in_flight=sum(reads.values()),
        element_bytes=element_bytes,
        assumptions=("a thread for each hidden element",),
    )


#: States of a cell that the product of the next time step reads, operands of a cell that the product before it wrote,
#: and what a cell reads of what the cell of the last time step wrote.
_TO_PRODUCT = ("hidden", "gate_gradients", "hidden_gate_gradients")
_FROM_PRODUCT = ("hidden_gates", "hidden_gradient")
_CARRIED: Mapping[str, str] = {"cell": "next_cell", "previous": "hidden", "next_cell_gradient": "cell_gradient"}


def time_steps(product: Stream, pointwise: Stream, steps: int = 2) -> tuple[Stream, ...]:
    """Return the kernels of some time steps, which share arrays, from the product and the cell of one step.

    The weights and the result of the product have the same addresses in all steps. Each cell writes new states, which
    the product and the cell of the next step read.

    Parameters
    ----------
    product, pointwise : Stream
        Product of the recurrent weights, and kernel of the cell.
    steps : int
        Time steps.

    Examples
    --------
    >>> from replay.memory.streams.products import product
    >>> kernels = time_steps(product((1, 16, 1024, 256)), cell("lstm", 16, 256))
    >>> kernels[2].operands[0].address == kernels[1].operands[3].address  # the hidden state
    True
    """
    memory = Memory()
    data, weights, result = product.operands[:3]
    shared = {array.name: memory.array(array.name, array.size) for array in (weights, result)}
    kernels: list[Stream] = []
    before: dict[str, Operand] = {}
    for _ in range(steps):
        states = [before[name] for name in _TO_PRODUCT if name in before and before[name].size == data.size]
        read = states[0] if states else memory.array(data.name, data.size)
        kernels.append(bind(product, {**shared, data.name: read}))
        arrays = {}
        for array in pointwise.operands:
            handed = array.name in _FROM_PRODUCT and array.size == result.size
            carried = before.get(_CARRIED.get(array.name, ""))
            kept = shared[result.name] if handed else carried
            arrays[array.name] = kept or memory.array(array.name, array.size)
        kernels.append(bind(pointwise, arrays))
        before = arrays
    return tuple(kernels)


@dataclass(frozen=True)
class RecurrentLayer:
    """Shape of a recurrent layer.

    Parameters
    ----------
    kind : str
        ``lstm`` or ``gru``.
    steps, batch : int
        Time steps, and sequences.
    inputs, hidden : int
        Elements of an input, and of the hidden state.
    element_bytes : int
        Bytes of an element.

    Raises
    ------
    InvalidInputError
        The cell is unknown, or a size is below 1.
    """

    kind: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    element_bytes: int = 4

    def __post_init__(self) -> None:
        checked_sizes(steps=self.steps, batch=self.batch, inputs=self.inputs, hidden=self.hidden)
        if self.kind not in GATES:
            raise InvalidInputError(f"cell {self.kind!r}; one of {', '.join(GATES)}")

    @property
    def state_bytes(self) -> int:
        """Bytes of the hidden state of a time step."""
        return self.batch * self.hidden * self.element_bytes

    @property
    def gates(self) -> int:
        """Gates of all hidden elements of a sequence."""
        return GATES[self.kind] * self.hidden


def recurrent(layer: RecurrentLayer, *, backward: bool = False) -> tuple[Stream, ...]:
    """Return the kernels of a recurrent layer over its time steps.

    Forward, a product computes the input gates of all steps. Then each step is a product of the hidden state by the
    recurrent weights, and the pointwise kernel. Backward follows forward: each step, from the last to the first, is the
    pointwise kernel and a product. Three products of all steps give the gradients of the input and of the weights.

    Parameters
    ----------
    layer : RecurrentLayer
        Shape.
    backward : bool
        Whether to append the backward pass.

    Returns
    -------
    tuple of Stream
        Kernels in order. They share arrays, so that a cache may keep the weights from step to step.

    Examples
    --------
    >>> [stream.name for stream in recurrent(RecurrentLayer("lstm", 2, 16, 128, 128))][:3]
    ['product 32 x 512 x 128', 'product 16 x 512 x 128', 'lstm cell 16 x 128']
    """
    arrays = _LayerArrays(layer)
    return (*arrays.forward(), *(arrays.backward() if backward else ()))


class _LayerArrays:
    """The arrays of a recurrent layer, and its kernels on them."""

    def __init__(self, layer: RecurrentLayer) -> None:
        self.layer, self.memory = layer, Memory()
        size, steps = layer.element_bytes, layer.steps
        self.x = self.memory.array("x", steps * layer.batch * layer.inputs * size)
        self.input_weights = self.memory.array("input_weights", layer.gates * layer.inputs * size)
        self.hidden_weights = self.memory.array("hidden_weights", layer.gates * layer.hidden * size)
        self.hidden = self.memory.array("hidden", (steps + 1) * layer.state_bytes)
        self.state = {
            name: self.memory.array(name, (steps if name == "workspace" else steps + 1) * count * layer.state_bytes)
            for name, count in (("cell", 1), ("workspace", _FORWARD[layer.kind][1]["workspace"]))
        }
        gates = GATES[layer.kind] * layer.state_bytes
        self.input_gates = self.memory.array("input_gates", steps * gates)
        self.hidden_gates = self.memory.array("hidden_gates", gates)

    def _product(self, sizes: tuple[int, int, int], layout: str, *arrays: Operand) -> tuple[Stream, ...]:
        """Return the kernels of a product of arrays A, B and C."""
        kernels = product_kernels((1, *sizes), self.layer.element_bytes, layout=layout)
        return bind_product(self.memory, kernels, arrays)

    def _at(self, array: Operand, step: int, count: int = 1) -> Operand:
        """Return the rows of a time step in an array with `count` elements for each hidden element."""
        size = count * self.layer.state_bytes
        return section(array, step * size, size)

    def forward(self) -> list[Stream]:
        """Return the kernels of the forward pass."""
        layer, gates = self.layer, GATES[self.layer.kind]
        rows = layer.steps * layer.batch
        sizes = (rows, layer.gates, layer.inputs)
        kernels = list(self._product(sizes, "nt", self.x, self.input_weights, self.input_gates))
        pointwise = cell(layer.kind, layer.batch, layer.hidden, layer.element_bytes)
        for step in range(layer.steps):
            before, after = self._at(self.hidden, step), self._at(self.hidden, step + 1)
            sizes = (layer.batch, layer.gates, layer.hidden)
            kernels += self._product(sizes, "nt", before, self.hidden_weights, self.hidden_gates)
            arrays = {
                "input_gates": self._at(self.input_gates, step, gates),
                "hidden_gates": self.hidden_gates,
                "previous": before,
                "hidden": after,
                "cell": self._at(self.state["cell"], step),
                "next_cell": self._at(self.state["cell"], step + 1),
                "workspace": self._workspace(step),
            }
            kernels.append(bind(pointwise, arrays))
        return kernels

    def backward(self) -> list[Stream]:
        """Return the kernels of the backward pass, after those of the forward pass."""
        layer, gates = self.layer, GATES[self.layer.kind]
        gradients = {
            name: self.memory.array(name, count * layer.state_bytes)
            for name, count in (("hidden_gradient", 1), ("next_cell_gradient", 1), ("hidden_gate_gradients", gates))
        }
        all_gates = self.memory.array("gate_gradients", layer.steps * gates * layer.state_bytes)
        pointwise = cell(layer.kind, layer.batch, layer.hidden, layer.element_bytes, backward=True)
        kernels: list[Stream] = []
        for step in reversed(range(layer.steps)):
            gate_gradients = self._at(all_gates, step, gates)
            arrays = {
                **gradients,
                "cell": self._at(self.state["cell"], step),
                "next_cell": self._at(self.state["cell"], step + 1),
                "workspace": self._workspace(step),
                "gate_gradients": gate_gradients,
                "cell_gradient": gradients["next_cell_gradient"],
                "previous_gradient": gradients["next_cell_gradient"],
            }
            kernels.append(bind(pointwise, arrays))
            sizes = (layer.batch, layer.hidden, layer.gates)
            kernels += self._product(sizes, "nn", gate_gradients, self.hidden_weights, gradients["hidden_gradient"])
        return kernels + self._of_all_steps(all_gates)

    def _of_all_steps(self, gates: Operand) -> list[Stream]:
        """Return the products that give the gradients of the input and of both weights."""
        layer, size = self.layer, self.layer.element_bytes
        rows = layer.steps * layer.batch
        x_gradient = self.memory.array("x_gradient", self.x.size)
        sizes = (rows, layer.inputs, layer.gates)
        kernels = list(self._product(sizes, "nn", gates, self.input_weights, x_gradient))
        for source, columns in ((self.x, layer.inputs), (self.hidden, layer.hidden)):
            result = self.memory.array("weight_gradient", layer.gates * columns * size)
            kernels += self._product((layer.gates, columns, rows), "tn", gates, source, result)
        return kernels

    def _workspace(self, step: int) -> Operand:
        return self._at(self.state["workspace"], step, _FORWARD[self.layer.kind][1]["workspace"])
