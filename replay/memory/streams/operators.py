"""The stream of an operator of a trace: `stream_of`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from profilers.errors import InvalidInputError
from replay.graph.operators import Operator
from replay.memory.accesses import Stream
from replay.memory.streams.products import library_tiling, product
from replay.memory.streams.rowwise import batch_norm, batch_norm_per_activation, layer_norm, softmax
from replay.memory.streams.streaming import Pass, optimizer, reduction, streaming_pass

#: Compute units for which a library chooses a tile if nothing is known: those of an A100.
_UNITS = 108


def stream_of(operator: Operator, *, workgroups: int = 0, units: int = _UNITS) -> Stream | None:
    """Return the stream of an operator; None if its kind has none or its shape does not tell.

    Parameters
    ----------
    operator : Operator
        Operator, as `replay.costs.operators.operator_of` returns it.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown. They choose the tile of a product, and the loop of kernels
        that pass over their data.
    units : int
        Compute units for which a library chooses the tile of a product whose launch is unknown.

    Examples
    --------
    >>> from replay.graph.operators import batched_matmul
    >>> stream_of(batched_matmul(1, 4096, 4096, 4096, 2), workgroups=512).assumptions[0]
    'tile 128 x 256 x 32'
    """
    rule = _RULES.get(operator.kind)
    if rule is None or not operator.dims or min(operator.dims) < 1:
        return None
    try:
        return rule(operator, workgroups, units)
    except InvalidInputError:
        return None


def _product(operator: Operator, workgroups: int, units: int) -> Stream | None:
    if len(operator.dims) != 4:
        return None
    batch, m, n, k = operator.dims
    tiling = library_tiling((batch, m, n, k), operator.element_bytes, workgroups=workgroups, units=units)
    return product((batch, m, n, k), operator.element_bytes, tiling=tiling)


def _softmax(operator: Operator, workgroups: int, units: int) -> Stream | None:
    rows, columns = operator.dims
    return softmax(rows, columns, operator.element_bytes, backward=_is_backward(operator))


def _normalization(operator: Operator, workgroups: int, units: int) -> Stream | None:
    backward = _is_backward(operator)
    if not operator.geometry:
        rows, columns = operator.dims
        return layer_norm(rows, columns, operator.element_bytes, backward=backward)
    images, channels, extent = operator.geometry
    of = batch_norm_per_activation if extent == 1 else batch_norm
    return of((images, channels, extent), operator.element_bytes, backward=backward)


def _is_backward(operator: Operator) -> bool:
    """Return whether a row-wise operator reads two matrices for one that it writes."""
    return operator.bytes_read > 1.5 * operator.bytes_written


def _streaming(operator: Operator, workgroups: int, units: int) -> Stream | None:
    data = _pass_of(operator)
    return streaming_pass(f"{operator.kind} {data.elements}", data, workgroups=workgroups)


def _reduction(operator: Operator, workgroups: int, units: int) -> Stream | None:
    data = _pass_of(operator)
    return reduction(f"reduction {data.elements}", data, workgroups=workgroups)


def _pass_of(operator: Operator) -> Pass:
    """Return the arrays of a pass: as many of full size as the bytes make, and the rest, which may repeat."""
    elements, size = operator.dims[0], operator.element_bytes
    full = elements * size
    reads = _arrays("input", round(operator.bytes_read), full)
    writes = _arrays("output", round(operator.bytes_written), full)
    return Pass(reads, writes, elements, size, operator.flops)


def _arrays(name: str, size: int, full: int) -> dict[str, int]:
    count, rest = divmod(size, full)
    arrays = {f"{name}_{number}": full for number in range(count)}
    return {**arrays, f"{name}_{count}": rest} if rest else arrays


def _optimizer(operator: Operator, workgroups: int, units: int) -> Stream | None:
    elements, size = operator.dims[0], operator.element_bytes
    lists = max(round(operator.bytes_read / (elements * size)), 1)
    writes = max(round(operator.bytes_written / (elements * size)), 1)
    return optimizer(elements, size, lists=lists, writes=min(writes, lists), flops=operator.flops / elements)


_RULES: Mapping[str, Callable[[Operator, int, int], Stream | None]] = MappingProxyType(
    {
        "matmul": _product,
        "batched_matmul": _product,
        "softmax": _softmax,
        "normalization": _normalization,
        "elementwise": _streaming,
        "copy": _streaming,
        "reduction": _reduction,
        "optimizer": _optimizer,
    }
)
