"""`Tally`: the different operators of a job and how often each is run, which takes no longer for many layers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from replay.jobs.architecture import Transformer
from replay.jobs.step import Step
from replay.operators import Operator

__all__ = ["Tally", "tally"]

#: Layers come in pairs that are alike: every second one of a Switch transformer has experts.
_PERIOD = 2


@dataclass(frozen=True)
class Tally:
    """Operators of a job.

    Parameters
    ----------
    operators : tuple of Operator
        All different.
    counts : tuple of int
        How often each is run.
    """

    operators: tuple[Operator, ...]
    counts: tuple[int, ...]


def tally(model: Transformer, listing: Callable[[Transformer], Sequence[Step]]) -> Tally:
    """Count the operators of a job without writing every layer out.

    Parameters
    ----------
    model : Transformer
    listing : callable
        Lists the steps of a model; each two layers more must add the same steps, also where neighbours are fused.

    Notes
    -----
    With ``c(n)`` the counts for n layers and m = 2 or 3, of the parity of n,
    ``c(n) = c(m) + (c(m + 2) - c(m)) * (n - m) / 2``.

    Examples
    --------
    >>> from replay.jobs.architecture import find_transformer
    >>> from replay.jobs.transformer import Pass, forward
    >>> model, run = find_transformer("bert_large"), Pass(8, 512)
    >>> found = tally(model, lambda one: forward(one, run))
    >>> len(found.operators), sum(found.counts) == len(forward(model, run))
    (13, True)
    """
    least = _PERIOD + model.layers % _PERIOD
    if model.layers <= least + _PERIOD:
        counts = _counted(listing(model))
    else:
        counts = _counted(listing(replace(model, layers=least)))
        more = _counted(listing(replace(model, layers=least + _PERIOD)))
        times = (model.layers - least) // _PERIOD
        counts = {one: counts.get(one, 0) + (count - counts.get(one, 0)) * times for one, count in more.items()}
    return Tally(tuple(counts), tuple(counts.values()))


def _counted(steps: Sequence[Step]) -> dict[Operator, int]:
    return dict(Counter(step.operator for step in steps))
