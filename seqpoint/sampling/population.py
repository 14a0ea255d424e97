"""The kernels that are sampled from: what they are called, how they were launched, how long they took."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from profilers.arrays import MISSING, integers
from profilers.errors import InvalidInputError
from profilers.schema import SCHEMAS
from profilers.trace import Trace

__all__ = ["KernelPopulation", "kernel_population", "kernels_with_shapes"]

#: What tells one launch of a kernel from another, beside its name; each may be absent, and null.
_LAUNCH = ("workgroups", "workgroup_size", "shapes")
_NEEDED = ("name", "dur_ns")
_KNOWN = frozenset(SCHEMAS["kernels"].names) | {"shapes"}

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class KernelPopulation:
    """Kernels as arrays, one entry a kernel.

    Attributes
    ----------
    duration_ns : ndarray of float64, shape (n_kernels,)
        Traced time.
    launches : ndarray of int64, shape (n_kernels,)
        Number of the kernel's kind of launch: its name, workgroups, workgroup size and, where known, the shapes of
        its operator's inputs. The kinds are numbered from zero, by name first.
    names : ndarray of int64, shape (n_launches,)
        Number of the name of each kind of launch, in the order of the names.
    """

    duration_ns: Floats
    launches: Ints
    names: Ints


def kernel_population(kernels: pa.Table | Mapping[str, ArrayLike] | KernelPopulation) -> KernelPopulation:
    """Return kernels as arrays that can be sampled from.

    Parameters
    ----------
    kernels : pyarrow.Table or mapping of str to array-like
        The table `kernels` of a trace, or equally long columns of its names. ``name`` and ``dur_ns`` are needed;
        ``workgroups``, ``workgroup_size`` and ``shapes`` (see `kernels_with_shapes`) are used where they are given;
        other columns of the table are not read. A missing value is a value of its own.

    Raises
    ------
    InvalidInputError
        No kernels, a column that is unknown, absent or of another length, or a duration that is missing, not
        finite or negative.

    Examples
    --------
    >>> population = kernel_population({"name": ["b", "a", "b"], "workgroups": [1, 1, 8], "dur_ns": [5, 2, 9]})
    >>> population.launches.tolist(), population.names.tolist()
    ([1, 0, 2], [0, 1, 1])
    """
    if isinstance(kernels, KernelPopulation):
        return kernels
    columns = _columns(kernels)
    durations = _durations(columns["dur_ns"])
    name_of_launch, launches = _dense(_codes(columns["name"])[0])
    for column in (columns[name] for name in _LAUNCH if name in columns):
        codes, size = _codes(column)
        distinct, launches = _dense(launches * size + codes)
        name_of_launch = name_of_launch[distinct // size]
    return KernelPopulation(durations, launches, name_of_launch)


def kernels_with_shapes(trace: Trace) -> pa.Table:
    """Return the table of kernels with a column ``shapes``, that of the operator that launched each.

    Null where the operator is not known or its shapes were not recorded.

    Examples
    --------
    >>> from profilers.trace import TraceMeta
    >>> kernels_with_shapes(Trace(TraceMeta("synthetic")))["shapes"].length()
    0
    """
    ids = integers(trace.ops, "id")
    order = np.argsort(ids, kind="stable")
    wanted = integers(trace.kernels, "op_id")
    at = np.searchsorted(ids[order], wanted)
    found = (wanted != MISSING) & (at < ids.size)
    found[found] = ids[order[at[found]]] == wanted[found]
    rows = np.full(wanted.size, -1, np.int64)
    rows[found] = order[at[found]]
    column = trace.ops["shapes"].combine_chunks()
    return trace.kernels.append_column("shapes", column.take(pa.array(rows, mask=~found)))


def _columns(kernels: pa.Table | Mapping[str, ArrayLike]) -> dict[str, pa.Array]:
    """Check which columns there are, and return those that are read."""
    names = list(kernels.schema.names if isinstance(kernels, pa.Table) else kernels)
    if unknown := sorted(set(names) - _KNOWN):
        raise InvalidInputError(f"kernels have no column {unknown}; the known ones are {sorted(_KNOWN)}")
    if absent := [name for name in _NEEDED if name not in names]:
        raise InvalidInputError(f"kernels need the columns {list(_NEEDED)}; {absent} is not given")
    columns = {name: _array(name, kernels[name]) for name in (*_NEEDED, *_LAUNCH) if name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"the columns of kernels have different lengths: {lengths}")
    if not lengths["dur_ns"]:
        raise InvalidInputError("there are no kernels to sample; give a trace of a device that ran some")
    return columns


def _array(name: str, values: pa.ChunkedArray | ArrayLike) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.unify_dictionaries().combine_chunks()
    try:
        return pa.array(values, from_pandas=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise InvalidInputError(f"column {name!r} of kernels is no one-dimensional column ({error})") from error


def _durations(column: pa.Array) -> Floats:
    if column.null_count:
        raise InvalidInputError(f"{column.null_count} kernels have no dur_ns; leave them out before sampling")
    try:
        durations = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"dur_ns must be numbers; {error}") from error
    bad = ~np.isfinite(durations) | (durations < 0)
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInputError(
            f"dur_ns of kernel {row} is {durations[row]:g}; a duration is a finite number, zero or more"
        )
    if not durations.any():
        raise InvalidInputError("all dur_ns are zero; a relative error needs a total above zero")
    return durations


def _codes(column: pa.Array) -> tuple[Ints, int]:
    """Number the distinct values of a column in their own order, null last; and how many numbers there are."""
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    values = encoded.dictionary
    rank = np.empty(len(values) + 1, np.int64)
    rank[pc.array_sort_indices(values).to_numpy(zero_copy_only=False)] = np.arange(len(values))
    rank[-1] = len(values)
    indices = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    return rank[indices], len(values) + 1


def _dense(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct keys, ascending, and which of them each key is; by hashing, without sorting all."""
    encoded = pc.dictionary_encode(pa.array(keys))
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    order = np.argsort(values)
    rank = np.empty(values.size, np.int64)
    rank[order] = np.arange(values.size)
    return values[order], rank[encoded.indices.to_numpy(zero_copy_only=False)]
