"""`TaskChoice`: the tasks that a what-if acts on, by class, by kind, or by a pattern of names."""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.kernels import CLASSES, COLLECTIVE
from replay.graph import KernelGraph, TaskKind
from replay.what_ifs.nearest import unknown

if TYPE_CHECKING:
    from replay.what_ifs.what_if import WhatIf

__all__ = ["TaskChoice", "check_patterns", "kernel_choice"]

Bools = npt.NDArray[np.bool_]
_KINDS = {"kernels": TaskKind.KERNEL, "collectives": TaskKind.COLLECTIVE, "copies": TaskKind.COPY}
#: What is of another kind than kernels; each kernel of the class is a collective.
_NO_KERNELS = ("collectives", "copies", COLLECTIVE)
#: A pattern is matched with every name of a trace.
_LONGEST, _STARS = 200, 16


@dataclass(frozen=True)
class TaskChoice:
    """Tasks on devices.

    Parameters
    ----------
    text : str
        ``all``; ``kernels``, ``collectives`` or ``copies``; a class of `profilers.kernels.CLASSES`; or the name of a
        kernel as the trace writes it, in which ``*`` stands for any text and ``?`` for any character (so for a ``:``).

    Raises
    ------
    InvalidInputError
        It is empty, longer than 200 characters, or has more than 16 stars.
    """

    text: str

    def __post_init__(self) -> None:
        if not self.text or len(self.text) > _LONGEST or self.text.count("*") > _STARS:
            raise InvalidInputError(
                f"{self.text[:60]!r} chooses no kernels: give a class, or a name with * and ?, of 1 to {_LONGEST} "
                f"characters and {_STARS} stars at most"
            )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The text, where it is a name or pattern."""
        return () if self.text == "all" or self.text in _KINDS or self.text in CLASSES else (self.text,)

    def rows(self, graph: KernelGraph) -> Bools:
        """Return which tasks of `graph` are chosen."""
        tasks = graph.tasks
        if self.text == "all":
            return graph.on_device()
        if self.text in _KINDS:
            return np.asarray((tasks.kind == _KINDS[self.text]) & graph.on_device())
        if self.text in CLASSES:
            return np.asarray((tasks.class_ == CLASSES.index(self.text)) & graph.on_device())
        fits = np.array([name_fits(self.text, name) for name in graph.names], dtype=bool)
        return np.asarray(fits[tasks.name] & graph.on_device()) if len(fits) else graph.on_device()


def kernel_choice(what: str, text: str) -> TaskChoice:
    """Return the choice of a what-if that acts on kernels alone.

    Raises
    ------
    InvalidInputError
        As `TaskChoice`, or it chooses collectives or copies.
    """
    if text in _NO_KERNELS:
        raise InvalidInputError(f"{what} acts on kernels that compute, and {text!r} are none: nothing would change")
    return TaskChoice(text)


def name_fits(pattern: str, name: str) -> bool:
    """Return whether a name is of a pattern; brackets stand for themselves, since C++ names have them."""
    return re.match(fnmatch.translate(pattern.replace("[", "[[]")), name) is not None


def check_patterns(what_if: "WhatIf", graphs: Sequence[KernelGraph]) -> None:
    """Make sure that every pattern fits a name of some graph; in one graph alone it may fit none.

    Raises
    ------
    NotFoundError
        One fits none; the nearest classes and names are offered.
    """
    for pattern in what_if.patterns:
        names = dict.fromkeys(name for graph in graphs for name in _device_names(graph))
        if not any(name_fits(pattern, name) for name in names):
            error = unknown("no class or kernel of the trace is called", pattern, ("all", *_KINDS, *CLASSES, *names))
            raise type(error)(f"what-if {what_if.label}: {error}")


def _device_names(graph: KernelGraph) -> Iterable[str]:
    return (graph.names[i] for i in np.unique(graph.tasks.name[graph.on_device()]).tolist())
