"""`WhatIf`: a named transformation of a graph."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profilers.errors import InvalidInputError, SeqPointError
from replay.graph import KernelGraph
from replay.parameters import Parameters

__all__ = ["WhatIf"]

Transform = Callable[[KernelGraph, Parameters], KernelGraph]


@dataclass(frozen=True)
class WhatIf:
    """A named transformation of a graph; pure, so the same graph and parameters give the same result.

    Parameters
    ----------
    name : str
        As the command line writes it, arguments included: ``"scale_device:MI355X"``. Reading it gives this what-if.
    transform : callable
        (graph, parameters) to graph.
    parts : tuple of str
        Names of the what-ifs that a composition is made of.
    patterns : tuple of str
        The names or patterns of kernels that it acts on.
    title : str
        What a plan file calls it.
    parameters : tuple of (str, float)
        Values that a plan file gives parameters of the models under it, in place of their own.
    """

    name: str
    transform: Transform
    parts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    title: str = ""
    parameters: tuple[tuple[str, float], ...] = ()

    def __call__(self, graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        """Return `graph` with the change made.

        Raises
        ------
        SeqPointError
            It cannot be made; the message names the what-if, of a composition the part.
        """
        if self.parts:
            return self.transform(graph, parameters)
        try:
            with np.errstate(over="ignore"):  # what is then not finite is an error of the graph
                return self.transform(graph, parameters)
        except SeqPointError as error:
            raise type(error)(f"what-if {self.name}: {error}") from error
        except ArithmeticError as error:
            raise InvalidInputError(f"what-if {self.name}: out of the range of numbers ({error})") from error

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of its parts, or its own."""
        return self.parts or (self.name,)

    @property
    def label(self) -> str:
        """Its title, or its name."""
        return self.title or self.name
