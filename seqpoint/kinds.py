"""Kinds of steps: steps that run the same kernels, such as training steps with and without an optimizer update.

`find_kinds` groups steps by the number of kernels of each name. A few kernels more or less, as dynamic shapes give,
make no other kind; nor do variants of a kernel that a library chooses by shape. `step_kinds` does so for the iterations
of a trace, `seqpoint.comparison` for two sides together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profilers.trace.arrays import MISSING, Bools, Floats, Ints, encode_text, integers
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace

#: Kernels of two steps of one kind differ by at most this share, in number and in time. In recorded traces of a
#: transformer with dynamic shapes, the nearest steps differ by up to 1.6 % and 4.2 %; two kinds of nanoGPT by 9 % and
#: 6 %, of a fluid simulation by 2 % and 10 %.
_MOST_APART = 0.05
#: Classes whose kernels libraries choose by shape, so that the class counts; and the class of kernels that no rule
#: knows, whose full name counts. Of others the name without the arguments of its template counts.
_BY_SHAPE, _UNKNOWN = ("attention", "convolution", "gemm"), "other"
#: Most steps with distinct kernels that can have kinds; of more the kernels vary, as with the sequence length.
_MOST_DISTINCT = 256
#: Seed of the numbers by which steps with the same kernels are found.
_SEED = 0


@dataclass(frozen=True)
class StepKernels:
    """Kernels of some steps, summed by step and name: columns of equal length.

    Parameters
    ----------
    size : int
        Number of steps.
    step : array of int64
        Row of the step.
    name : array of int64
        Name of the kernel, or of the operator if there are no kernels, as an index into `names`.
    count, time_ns : array of float64
        Number of kernels, and their time.
    names : tuple of str
        The names, as `kernel_family` gives them; untrusted text.
    """

    size: int
    step: Ints
    name: Ints
    count: Floats
    time_ns: Floats
    names: tuple[str, ...]


def kernel_family(name: str, class_: str) -> str:
    """Return the name of a kernel and its variants.

    Parameters
    ----------
    name : str
        Name of the kernel.
    class_ : str
        Its class.

    Examples
    --------
    >>> kernel_family("ampere_sgemm_128x64_nn", "gemm"), kernel_family("vectorized<4, Add>(int)", "elementwise")
    ('gemm', 'vectorized')
    """
    if class_ in _BY_SHAPE:
        return class_
    return name if class_ == _UNKNOWN else name.partition("<")[0]


def step_kinds(trace: Trace, iterations: Ints) -> Ints:
    """Return the kind of some iterations of a trace: 0 for the most frequent one, then the next.

    Operators stand for kernels if the trace has no kernels.

    Parameters
    ----------
    trace : Trace
        The trace.
    iterations : array of int64
        Numbers of the iterations.
    """
    table = trace.kernels if trace.kernels.num_rows else trace.ops
    number = integers(table, "iteration")
    step = lookup(iterations, np.arange(len(iterations)), np.where(number < 0, MISSING, number))
    inside = step != MISSING
    name, names = encode_text(table["name"])
    time = np.maximum(integers(table, "dur_ns")[inside], 0).astype(np.float64)
    texts = tuple(map(str, names))
    if table is trace.kernels:
        texts = tuple(kernel_family(text, trace.meta.class_of(text)) for text in texts)
    kernels = StepKernels(len(iterations), step[inside], name[inside], np.ones(len(time)), time, texts)
    return find_kinds([kernels])[0]


def find_kinds(groups: Sequence[StepKernels]) -> list[Ints]:
    """Return the kind of each step of some groups of steps: 0 for the most frequent kind of all, then the next.

    Two steps are of one kind if their kernels differ by at most 5 %, in number and in time, or if a chain of such steps
    links them. The time of a kernel is the mean of its name over all steps. If a group has more kinds than two and the
    binary logarithm of its steps, its kernels vary, as with the sequence length. Then all steps are of one kind.

    Parameters
    ----------
    groups : sequence of StepKernels
        Steps of each group. Groups share kinds.

    Examples
    --------
    >>> steps, names = np.arange(6), ("forward", "update")
    >>> time = np.full(6, 100.0)
    >>> run = StepKernels(4, np.array([0, 1, 2, 3, 1, 3]), np.array([0, 0, 0, 0, 1, 1]), np.ones(6), time, names)
    >>> find_kinds([run])[0].tolist()
    [0, 1, 0, 1]
    """
    sizes = [group.size for group in groups]
    if not any(sizes):
        return [np.empty(0, np.int64) for _ in sizes]
    label = _labels(groups, int(np.sum(sizes)))
    kinds = np.split(label, np.cumsum(sizes)[:-1])
    if any(not _recur(each) for each in kinds):
        return [np.zeros(size, np.int64) for size in sizes]
    found, first, of_step, count = np.unique(label, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(found), np.int64)
    rank[np.lexsort((first, -count))] = np.arange(len(found))
    return [rank[each] for each in np.split(of_step, np.cumsum(sizes)[:-1])]


def _recur(labels: Ints) -> bool:
    """Return whether the kinds of a group are few enough to be kinds."""
    found, steps = len(np.unique(labels)), len(labels)
    return found <= 1 or (found < steps and found <= max(2, int(np.log2(steps))))


def _labels(groups: Sequence[StepKernels], size: int) -> Ints:
    """Return a label of the kind of each step of all groups."""
    names = sorted({name for group in groups for name in group.names})
    number = {name: i for i, name in enumerate(names)}
    offsets = np.cumsum([0, *(group.size for group in groups)])
    code = np.concatenate([np.array([number[n] for n in g.names] or [0], np.int64)[g.name] for g in groups])
    step = np.concatenate([g.step + offset for g, offset in zip(groups, offsets[:-1].tolist(), strict=True)])
    count, time = (np.concatenate([getattr(g, name) for g in groups]) for name in ("count", "time_ns"))
    total = np.bincount(code, count, len(names))
    mean = np.divide(np.bincount(code, time, len(names)), total, out=np.zeros(len(names)), where=total > 0)
    mark = np.bincount(step, count * np.random.default_rng(_SEED).random(len(names) + 1)[code], size)
    _, first, of_step = np.unique(np.round(mark, 6), return_index=True, return_inverse=True)
    if not 1 < len(first) <= _MOST_DISTINCT:
        return np.zeros(size, np.int64)
    kept = np.isin(step, first)
    counts = np.zeros((len(first), len(names)))
    np.add.at(counts, (of_step[step[kept]], code[kept]), count[kept])
    near = _near(counts) & _near(counts * mean)
    return _first_linked(near)[of_step]


def _first_linked(near: Bools) -> Ints:
    """Return the first row that a chain of pairs in a symmetric matrix links to each row; SciPy loads in 0.15 s."""
    first = np.arange(len(near))
    while (first != (lower := np.where(near, first, len(near)).min(axis=1))).any():
        first = lower
    return first


def _near(amounts: Floats) -> Bools:
    """Return whether the rows differ in pairs by at most 5 % of the larger sum of the two."""
    sums = amounts.sum(axis=1)
    rows = [np.abs(amounts - row).sum(axis=1) for row in amounts]  # a Python loop over distinct steps, at most 256
    return np.asarray(np.stack(rows) <= _MOST_APART * np.maximum(sums[:, None], sums))
