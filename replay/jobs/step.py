"""`Step`: one operator of a job, with what its backward pass takes, and how operators fuse."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from replay.operators import Operator, batched_matmul, rowwise, streaming

__all__ = ["Step", "backward", "fused", "product", "rows", "stream"]


@dataclass(frozen=True)
class Step:
    """One operator that a job runs.

    Parameters
    ----------
    name : str
        Of the operator, as PyTorch has it.
    operator : Operator
    gradient : tuple of Operator
        What its backward pass runs.
    parameters : int
        Elements of its weights, whose gradients are added up.
    chained : float
        Bytes that it reads of what the operator before it wrote; 0 of an operator that does not fuse.
    collective : str
        Kind of collective, where the step is one; `operator` then holds the bytes that are exchanged.
    """

    name: str
    operator: Operator
    gradient: tuple[Operator, ...] = ()
    parameters: int = 0
    chained: float = 0.0
    collective: str = ""


def stream(name: str, elements: int, arrays: float = 2.0, back: float = 2.0, size: int = 4) -> Step:
    """Return a pointwise operator.

    Parameters
    ----------
    elements : int
    arrays : float
        Arrays of that many elements that are read and written, of which one is written.
    back : float
        Arrays of its backward pass; 0 if the gradient passes unchanged.
    size : int
        Bytes of an element.

    Examples
    --------
    >>> stream("aten::add", 100, arrays=3).operator.bytes_moved
    1200.0
    """
    forward = streaming("elementwise", (arrays - 1) * elements * size, float(elements * size), elements, size)
    gradient = streaming("elementwise", (back - 1) * elements * size, float(elements * size), elements, size)
    return Step(name, forward, (gradient,) if back else (), chained=float(elements * size))


def rows(name: str, kind: str, count: int, columns: int, size: int = 4) -> Step:
    """Return a softmax or a normalisation of `count` rows.

    A softmax's backward pass multiplies gradient and result first, then goes over rows: six arrays. A normalisation
    has weights and biases.
    """
    back = rowwise(kind, count, columns, size, backward=True)
    first = (
        streaming("elementwise", 2.0 * count * columns * size, float(count * columns * size), count * columns, size),
    )
    gradient = (*first, back) if kind == "softmax" else (back, _column_sums(count, columns, size))
    weights = 2 * columns if kind == "normalization" else 0
    return Step(name, rowwise(kind, count, columns, size), gradient, weights, float(count * columns * size))


def _column_sums(count: int, columns: int, size: int) -> Operator:
    return streaming("reduction", float(count * columns * size), float(columns * size), count * columns, size)


def product(name: str, batch: int, m: int, n: int, k: int, size: int = 4, *, weights: int = 0) -> Step:
    """Return a product of (m, k) by (k, n); its backward pass is a product for each operand.

    Parameters
    ----------
    weights : int
        Elements of the second operand and the bias, where they are weights; the bias' gradient is a sum of rows.
    """
    gradient = [batched_matmul(batch, m, k, n, size), batched_matmul(batch, k, n, m, size)]
    if weights > k * n:
        gradient.append(_column_sums(m, n, size))
    return Step(name, batched_matmul(batch, m, n, k, size), tuple(gradient), weights)


def backward(steps: Sequence[Step]) -> list[Step]:
    """Return the backward pass: gradients in reverse order, and each weight's added to what is there."""
    found = []
    for step in reversed(steps):
        found += [Step(f"{step.name}_backward", operator) for operator in step.gradient]
        if step.parameters:
            size = step.operator.element_bytes
            found.append(stream("aten::add_", step.parameters, arrays=3, back=0, size=size))
    return found


def fused(steps: Iterable[Step]) -> list[Step]:
    """Return the steps with neighbours that fuse made one: it reads its inputs and writes its last result.

    A row-wise operator keeps its rows; a chain of pointwise ones is a pointwise one.
    """
    found: list[Step] = []
    for step in steps:
        if found and step.chained and found[-1].chained:
            found[-1] = _joined(found[-1], step)
        else:
            found.append(step)
    return found


def _joined(first: Step, second: Step) -> Step:
    one, two = first.operator, second.operator
    read = one.bytes_read + max(two.bytes_read - second.chained, 0.0)
    kept = one if one.kind in ("softmax", "normalization") else two
    operator = replace(kept, flops=one.flops + two.flops, bytes_read=read, bytes_written=two.bytes_written)
    return replace(
        first, name=f"{first.name}+{second.name}", operator=operator, gradient=first.gradient + second.gradient
    )
