"""Which what-ifs there are: the project's own, and those that other packages bring.

A package adds some by entry points in the group ``seqpoint.what_ifs``, each of which names a `Recipe`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TypeVar

from profilers.errors import InvalidInputError, SeqPointError
from replay.graph import KernelGraph
from replay.parameters import Parameters
from replay.what_ifs import (
    c3,
    device,
    dispatch,
    dma,
    dtype,
    ficco,
    fuse,
    fuse_collectives,
    launch_overhead,
    modified,
    overlap,
    power,
    scale,
    stream,
    swap,
    t3,
    world_size,
)
from replay.what_ifs.recipe import GROUPS, Recipe
from replay.what_ifs.what_if import WhatIf

__all__ = ["Registry", "registry", "what_ifs"]

_T = TypeVar("_T")
_GROUP = "seqpoint.what_ifs"
_MODULES = (
    scale,
    swap,
    fuse,
    dtype,
    device,
    modified,
    power,
    overlap,
    dma,
    c3,
    t3,
    ficco,
    fuse_collectives,
    world_size,
    launch_overhead,
    dispatch,
    stream,
)


@dataclass(frozen=True)
class Registry:
    """What-ifs by name, and why some are not among them.

    Parameters
    ----------
    recipes : mapping of str to Recipe
    problems : mapping of str to str
        By the name of an entry point and its package: why it is left out.
    """

    recipes: Mapping[str, Recipe]
    problems: Mapping[str, str]


def what_ifs() -> Mapping[str, Recipe]:
    """Return every what-if by name, by group."""
    return registry().recipes


@cache
def registry() -> Registry:
    """Return every what-if, those of other packages included, and what is wrong with those that are left out."""
    own = [recipe for module in _MODULES for recipe in module.RECIPES]
    found = {recipe.name: recipe for recipe in sorted(own, key=lambda one: GROUPS.index(one.group))}
    problems: dict[str, str] = {}
    for point in sorted(entry_points(group=_GROUP), key=lambda p: (p.name, _package(p), p.value)):
        place = f"{point.name} of {_package(point)}"
        try:
            recipe = _loaded(point)
        except Exception as error:  # noqa: BLE001 - a package of somebody else may fail in any way
            problems[place] = str(error) if isinstance(error, SeqPointError) else f"{type(error).__name__}: {error}"
            continue
        if (taken := found.get(recipe.name)) is not None:
            problems[place] = f"the name {recipe.name} is taken by {taken.package or 'seqpoint itself'}"
        else:
            found[recipe.name] = recipe
    return Registry(MappingProxyType(found), MappingProxyType(problems))


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _loaded(point: EntryPoint) -> Recipe:
    recipe = point.load()
    if not isinstance(recipe, Recipe):
        raise InvalidInputError(f"{point.value} is a {type(recipe).__name__}, not a replay.what_ifs.Recipe")
    if recipe.name != point.name:
        raise InvalidInputError(f"{point.value} is called {recipe.name}, its entry point {point.name}")
    about = recipe.documentation
    return replace(recipe, make=_guarded(recipe.make, _package(point)), package=_package(point), about=about)


def _guarded(make: Callable[..., WhatIf], package: str) -> Callable[..., WhatIf]:
    """Return `make` with an error that names the package for all that it and its what-ifs do wrong."""

    def made(*values: object) -> WhatIf:
        what_if = _called(package, WhatIf, lambda: make(*values))

        def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
            return _called(package, KernelGraph, lambda: what_if(graph, parameters))

        return replace(what_if, transform=transform, parts=())

    return made


def _called(package: str, type_: type[_T], function: Callable[[], object]) -> _T:
    try:
        result = function()
    except SeqPointError:
        raise
    except Exception as error:
        raise InvalidInputError(f"failed in package {package}: {type(error).__name__}: {error}") from error
    if not isinstance(result, type_):
        raise InvalidInputError(f"failed in package {package}: gave a {type(result).__name__}, not a {type_.__name__}")
    return result
