"""Composition of what-ifs, and their notation: ``NAME:ARGUMENT:...``, joined by ``+``."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from profilers.errors import InvalidInputError, NotFoundError
from replay.graph import KernelGraph
from replay.parameters import Parameters
from replay.what_ifs.device import scale_device, scale_links
from replay.what_ifs.dma import dma_collectives
from replay.what_ifs.dtype import change_dtype
from replay.what_ifs.modified import scale_clock, scale_compute_units, scale_memory_bandwidth
from replay.what_ifs.overlap import overlap
from replay.what_ifs.scale import scale_host, scale_kernels
from replay.what_ifs.what_if import WhatIf

__all__ = ["Recipe", "WhatIf", "compose", "parse_what_if", "what_ifs"]


@dataclass(frozen=True)
class Recipe:
    """How a what-if is written and made.

    Parameters
    ----------
    make : callable
        From the texts of the arguments.
    arguments : tuple of str
        Their names, for messages.
    summary : str
        One sentence.
    example : str
    """

    make: Callable[..., WhatIf]
    arguments: tuple[str, ...]
    summary: str
    example: str


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInputError(f"{what} {text!r} is no number") from error


def _types(text: str) -> tuple[str, str]:
    old, arrow, new = text.partition("->")
    if not arrow:
        raise InvalidInputError(f"data types {text!r}: write OLD->NEW, as in fp32->bf16")
    return old.strip(), new.strip()


_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "scale_kernels": Recipe(
            lambda class_, factor: scale_kernels(class_, _number(factor, "factor")),
            ("CLASS", "FACTOR"),
            "Kernels of a class take FACTOR times as long.",
            "scale_kernels:gemm:0.5",
        ),
        "scale_host": Recipe(
            lambda factor: scale_host(_number(factor, "factor")),
            ("FACTOR",),
            "Calls on the host, and the time between them, take FACTOR times as long.",
            "scale_host:0.5",
        ),
        "scale_device": Recipe(
            scale_device,
            ("DEVICE",),
            "Every kernel is re-timed for another device by what models say of it on both.",
            "scale_device:H100-SXM5-80GB",
        ),
        "scale_clock": Recipe(
            lambda factor: scale_clock(_number(factor, "factor")),
            ("FACTOR",),
            "Compute units run at FACTOR times their clock; memory and links stay.",
            "scale_clock:0.8",
        ),
        "scale_compute_units": Recipe(
            lambda factor: scale_compute_units(_number(factor, "factor")),
            ("FACTOR",),
            "The device has FACTOR times as many compute units; memory and links stay.",
            "scale_compute_units:0.5",
        ),
        "scale_memory_bandwidth": Recipe(
            lambda factor: scale_memory_bandwidth(_number(factor, "factor")),
            ("FACTOR",),
            "The device's memory has FACTOR times its bandwidth.",
            "scale_memory_bandwidth:1.5",
        ),
        "change_dtype": Recipe(
            lambda types: change_dtype(*_types(types)),
            ("OLD->NEW",),
            "Kernels that compute in data type OLD compute in NEW, with operands of its size.",
            "change_dtype:fp32->bf16",
        ),
        "scale_links": Recipe(
            lambda factor: scale_links(_number(factor, "factor")),
            ("FACTOR",),
            "Links between devices have FACTOR times their bandwidth.",
            "scale_links:2",
        ),
        "dma_collectives": Recipe(
            dma_collectives,
            (),
            "Collectives without arithmetic move to the DMA engines (ConCCL).",
            "dma_collectives",
        ),
        "overlap": Recipe(
            overlap,
            ("none|no_contention|ideal",),
            "Device work runs one at a time; or communication slows nothing; or nothing waits for communication.",
            "overlap:ideal",
        ),
    }
)


def what_ifs() -> Mapping[str, Recipe]:
    """Return every what-if by name."""
    return _RECIPES


def compose(*parts: WhatIf) -> WhatIf:
    """Return the what-if that applies `parts` from left to right; composing nothing changes nothing.

    Examples
    --------
    >>> compose(dma_collectives(), scale_links(2.0)).name
    'dma_collectives+scale_links:2'
    """

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        for part in parts:
            graph = part(graph, parameters)
        return graph

    steps = tuple(step for part in parts for step in part.steps)
    return WhatIf("+".join(steps) or "nothing", transform, steps)


def parse_what_if(text: str) -> WhatIf:
    """Return the what-if written as ``NAME:ARGUMENT``, several joined by ``+``.

    Raises
    ------
    NotFoundError
        There is no such what-if, or no such device; the nearest names are offered.
    InvalidInputError
        Its arguments are missing, too many or wrong.
    """
    parts = [_parse_one(part.strip()) for part in text.split("+")]
    return parts[0] if len(parts) == 1 else compose(*parts)


def _parse_one(text: str) -> WhatIf:
    name, *arguments = text.split(":")
    recipe = _RECIPES.get(name)
    if recipe is None:
        near = difflib.get_close_matches(name, _RECIPES, n=3, cutoff=0.4) or list(_RECIPES)
        raise NotFoundError(f"no what-if is called {name!r}; did you mean {', '.join(near)}?")
    if len(arguments) != len(recipe.arguments):
        form = ":".join((name, *recipe.arguments))
        raise InvalidInputError(f"{text!r}: write {form}, as in {recipe.example}")
    return recipe.make(*arguments)
