"""Actions: what somebody can do to make steps shorter, each with the what-if that replays it."""

from collections.abc import Sequence

import msgspec

from profilers.files import shipped_table
from replay.projection.pacing import Limits

#: An action gains at least this much, or it is not worth it.
WORTH = 1.005
#: What an action on a single rank has in its what-if.
OF_RANK = "@rank="


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
    error : float, optional
        Median error of its gain where it was measured before and after (docs/accuracy.md); None if it never was.
    """

    what_if: str
    label: str
    resource: str
    takes: str
    text: str
    error: float | None = None

    @property
    def says_how(self) -> bool:
        """Whether it names a way, and does not only ask what something faster would be worth."""
        return not self.what_if.startswith("scale_") or OF_RANK in self.what_if


class _Actions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    actions: tuple[Action, ...]


def actions() -> tuple[Action, ...]:
    """Return all actions."""
    return shipped_table("advice.toml", "actions", _Actions).actions


def possible_actions(limits: Limits, of: Sequence[Action] | None = None) -> list[Action]:
    """Return the actions on a resource without which steps would be shorter; all, if the bounds are unknown.

    Parameters
    ----------
    limits : Limits
        What limits the steps.
    of : sequence of Action, optional
        The actions to choose from; by default those that are shipped.
    """
    return [action for action in (actions() if of is None else of) if limits.bound.get(action.resource, 1.0) >= WORTH]
