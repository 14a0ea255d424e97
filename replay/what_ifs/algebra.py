"""Composition of what-ifs, and their notation: ``NAME:ARGUMENT:...``, joined by ``+``."""

from dataclasses import replace

from profilers.errors import InvalidInputError, NotFoundError
from replay.graph import KernelGraph
from replay.parameters import Parameters
from replay.what_ifs.nearest import unknown
from replay.what_ifs.recipe import Recipe
from replay.what_ifs.registry import registry
from replay.what_ifs.what_if import WhatIf
from replay.what_ifs.writing import split_steps, split_words, written

__all__ = ["compose", "made", "parse_what_if", "recipe_named"]

#: Steps of a composition, and characters of its text; more is a mistake.
_STEPS, _LONGEST = 64, 20_000


def compose(*parts: WhatIf) -> WhatIf:
    """Return the what-if that applies `parts` from left to right; composing nothing changes nothing.

    Examples
    --------
    >>> from replay.what_ifs import dma_collectives, scale_links
    >>> compose(dma_collectives(), scale_links(2.0)).name
    'dma_collectives+scale_links:2'
    """

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        for part in parts:
            graph = part(graph, parameters)
        return graph

    steps = tuple(step for part in parts for step in part.steps)
    patterns = tuple(pattern for part in parts for pattern in part.patterns)
    return WhatIf("+".join(steps) or "nothing", transform, steps, patterns)


def parse_what_if(text: str) -> WhatIf:
    r"""Return the what-if written as ``NAME:ARGUMENT``, several joined by ``+``; ``nothing`` changes nothing.

    In an argument, a ``:``, ``+`` or ``\`` has a ``\`` before it.

    Raises
    ------
    NotFoundError
        There is no such what-if, or no such device; the nearest names are offered.
    InvalidInputError
        Its arguments are missing, too many or wrong.
    """
    if len(text) > _LONGEST:
        raise InvalidInputError(f"a what-if of {len(text)} characters; {_LONGEST} at most")
    if text.startswith("@"):
        raise InvalidInputError(
            f"{text[:80]!r}: a plan has several what-ifs; `seqpoint project` and `report` read plans"
        )
    steps = split_steps(text)
    if len(steps) > _STEPS:
        raise InvalidInputError(f"a what-if of {len(steps)} steps; {_STEPS} at most")
    parts = [_parse_one(step) for step in steps]
    return parts[0] if len(parts) == 1 else compose(*parts)


def _parse_one(step: str) -> WhatIf:
    if step == "nothing":
        return compose()
    name, *texts = split_words(step)
    return made(recipe_named(name), texts)


def made(recipe: Recipe, texts: list[str]) -> WhatIf:
    """Return the what-if of a recipe with these texts as its first arguments.

    Raises
    ------
    InvalidInputError, NotFoundError
        As `Recipe.made`.
    """
    what_if = recipe.made(texts)
    # What another package calls it may not be what is read back as the same.
    return replace(what_if, name=written(recipe.name, *texts)) if recipe.package else what_if


def recipe_named(name: str) -> Recipe:
    """Return the recipe of a what-if.

    Raises
    ------
    NotFoundError
        There is none; the nearest names are offered, or why a package that has one of the name could not be loaded.
    """
    known = registry()
    if name in known.recipes:
        return known.recipes[name]
    for place, why in known.problems.items():
        if place.startswith(f"{name} of "):
            raise NotFoundError(f"the what-if {place} could not be loaded: {why}")
    raise unknown("no what-if is called", name, known.recipes)
