"""Which arguments of an event have a column of their own, by kind: one table for both ways of reading."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ARGUMENTS", "HOST_KINDS", "KIND_OF", "Argument"]

#: Category, in lower case, to kind. Every other category with a duration becomes a range.
KIND_OF: Mapping[str, str] = {
    "cpu_op": "ops",
    "operator": "ops",
    "kernel": "kernels",
    "gpu_memcpy": "copies",
    "memcpy": "copies",
    "gpu_memset": "copies",
    "memset": "copies",
    "cuda_runtime": "launches",
    "cuda_driver": "launches",
    "runtime": "launches",
    "mtia_runtime": "launches",
    "xpu_runtime": "launches",
    "xpu_driver": "launches",
    "privateuse1_runtime": "launches",
    "privateuse1_driver": "launches",
    "cuda_sync": "syncs",
}
#: Kinds whose events have a process and a thread.
HOST_KINDS = frozenset({"ops", "launches", "ranges", "counters"})


@dataclass(frozen=True)
class Argument:
    """An argument with a column.

    Parameters
    ----------
    column : str
    keys : tuple of str
        How it is spelled; the first that is there counts.
    what : str
        ``"integer"``, ``"narrow"`` (32 bits), ``"float"`` or ``"json"``.
    """

    column: str
    keys: tuple[str, ...]
    what: str = "integer"


_EXTERNAL = Argument("external_id", ("External id", "external id"))
_CORRELATION = Argument("correlation", ("correlation",))
_RECORD = Argument("record_function_id", ("Record function id",))
_INDEX = Argument("event_index", ("Ev Idx",))
_PLACE = (Argument("device", ("device",), "narrow"), Argument("stream", ("stream",)))

ARGUMENTS: Mapping[str, tuple[Argument, ...]] = {
    "ops": (
        _EXTERNAL,
        Argument("sequence_number", ("Sequence number",)),
        Argument("forward_thread", ("Fwd thread id",)),
        _RECORD,
        _INDEX,
        Argument("shapes", ("Input Dims", "Input dims"), "json"),
        Argument("dtypes", ("Input type",), "json"),
        Argument("strides", ("Input Strides",), "json"),
        Argument("concrete_inputs", ("Concrete Inputs",), "json"),
    ),
    "launches": (_EXTERNAL, _CORRELATION),
    "kernels": (
        *_PLACE,
        Argument("queue", ("queue",)),
        _EXTERNAL,
        _CORRELATION,
        Argument("registers", ("registers per thread",), "narrow"),
        Argument("lds_bytes", ("shared memory",)),
        Argument("occupancy", ("est. achieved occupancy %",), "float"),
        Argument("graph_node", ("graph node id",)),
    ),
    "copies": (*_PLACE, _EXTERNAL, _CORRELATION, Argument("bytes", ("bytes",))),
    "syncs": (
        *_PLACE,
        _CORRELATION,
        Argument("wait_on_stream", ("wait_on_stream",)),
        Argument("event", ("wait_on_cuda_event_id",)),
        Argument("event_correlation", ("wait_on_cuda_event_record_corr_id",)),
    ),
    "ranges": (
        *_PLACE,
        _EXTERNAL,
        _RECORD,
        _INDEX,
        Argument("python_id", ("Python id",)),
        Argument("python_parent_id", ("Python parent id",)),
        Argument("python_module_id", ("Python module id",)),
    ),
    "counters": (Argument("value", ("Bytes", "value"), "float"),),
}
