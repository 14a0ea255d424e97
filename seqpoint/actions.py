"""Actions: what somebody can do to make steps shorter, each with the what-if that replays it."""

import msgspec

from profilers.files import shipped_table
from replay.projection.pacing import Limits

#: An action gains at least this much, or it is not worth it.
WORTH = 1.005


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody can do, and the what-if that replays it.

    Parameters
    ----------
    what_if : str
        The what-if.
    label : str
        Short name.
    resource : str
        Resource that it makes faster, one of `replay.graph.edit.LIMITING`.
    takes : str
        ``"flag"``, ``"code"``, ``"library"`` or ``"hardware"``.
    text : str
        What to do.
    """

    what_if: str
    label: str
    resource: str
    takes: str
    text: str

    @property
    def says_how(self) -> bool:
        """Whether it names a way, and does not only ask what something faster would be worth."""
        return not self.what_if.startswith("scale_")


class _Actions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    actions: tuple[Action, ...]


def actions() -> tuple[Action, ...]:
    """Return all actions."""
    return shipped_table("advice.toml", "actions", _Actions).actions


def possible_actions(limits: Limits) -> list[Action]:
    """Return the actions on a resource without which steps would be shorter; all are on steps without a device.

    Parameters
    ----------
    limits : Limits
        What limits the steps.
    """
    return [action for action in actions() if limits.bound.get(action.resource, 1.0) >= WORTH]
