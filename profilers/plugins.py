"""Plug-ins: objects that other distributions add by an entry point, loaded one after the other.

Readers, what-ifs and selectors are added in the same way. A plug-in that cannot be loaded, or whose name is taken, is
reported with its distribution and its reason; it never stops the others.
"""

import sys
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from profilers.errors import SeqPointError

T = TypeVar("T")

#: The distribution whose own entry points keep their names.
OURS = "seqpoint"


@dataclass(frozen=True)
class Plugin(Generic[T]):
    """A plug-in: loaded, or left out with the reason.

    Parameters
    ----------
    name : str
        Name of the entry point.
    package : str
        Distribution that brings it.
    value : object, optional
        The reader, what-if or selector; None if it is left out.
    problem : str
        Why it is left out; empty if it is loaded.
    """

    name: str
    package: str
    value: T | None = None
    problem: str = ""

    @property
    def label(self) -> str:
        """Name and distribution, as messages write them."""
        return f"{self.name} of {self.package}"


def load_plugins(
    group: str, load: Callable[[EntryPoint], T], *, taken: Container[str] = (), first: str = ""
) -> Iterator[Plugin[T]]:
    """Load the plug-ins of an entry-point group, each only when the iterator reaches it.

    Plug-ins of other distributions come before this project's own, so that a reader of a special format is tried
    before a general one.

    Parameters
    ----------
    group : str
        Name of the entry-point group, such as ``"seqpoint.readers"``.
    load : callable
        Returns the object that an entry point adds, or raises.
    taken : container of str
        Names that this project uses without an entry point.
    first : str
        Name of this project's own plug-in that comes before all others.

    Yields
    ------
    Plugin
        Ordered by name within other distributions, then within this project.
    """
    points = _points(group, tuple(sys.path), entry_points)
    own_names = {point.name for point, package in points if package == OURS}
    owners: dict[str, str] = {}

    def order(of_package: tuple[EntryPoint, str]) -> tuple[bool, bool, str, str, str]:
        point, package = of_package
        ours = package == OURS
        return not (ours and point.name == first), ours, point.name, package, point.value

    for point, package in sorted(points, key=order):
        name = point.name
        owner = owners.get(name)
        if package != OURS and (name in own_names or name in taken):
            owner = "seqpoint itself"
        if owner:
            yield Plugin(name, package, problem=f"the name {name} is taken by {owner}")
            continue
        try:
            value = load(point)
        except Exception as error:  # noqa: BLE001 - code of another distribution may fail in any way
            reason = str(error) if isinstance(error, SeqPointError) else f"{type(error).__name__}: {error}"
            yield Plugin(name, package, problem=reason)
        else:
            owners[name] = package
            yield Plugin(name, package, value)


@lru_cache
def _points(
    group: str, _folders: tuple[str, ...], find: Callable[..., Iterable[EntryPoint]]
) -> list[tuple[EntryPoint, str]]:
    """Return the entry points of a group with their distributions, whose metadata is parsed once for all files."""
    return [(point, package_of(point)) for point in find(group=group)]


def package_of(point: EntryPoint) -> str:
    """Return the name of the distribution that brings an entry point."""
    return point.dist.name if point.dist is not None else "an unknown package"
