"""Who gets the memory when a product and communication both want it: first come, or the product first."""

from collections.abc import Mapping
from dataclasses import dataclass

from profilers.errors import InvalidInputError

__all__ = ["Arbitration", "compute_first", "first_come"]


@dataclass(frozen=True)
class Arbitration:
    """What accesses to memory ask of its controller.

    A controller is a device of the graph of its own. Bandwidth (`hbm`) is shared max-min: whoever asks gets as much as
    the others. The engine gives out compute units by priority; on a controller, which has none, they stand for slots of
    its queue: where accesses need slots, those of the product come first, and communication gets what is left.

    Parameters
    ----------
    held : float
        Share of the slots that a burst of the product holds; 0 where nobody needs any.
    needed : float
        Share of the slots that an access of communication needs; 0 where nobody does.
    """

    held: float = 0.0
    needed: float = 0.0

    def product(self) -> Mapping[str, float]:
        """Return what a burst of the product asks for."""
        return {"hbm": 1.0, "cu": self.held, "priority": 1}

    def communication(self) -> Mapping[str, float]:
        """Return what an access of communication asks for."""
        return {"hbm": 1.0, "cu": self.needed}


def first_come() -> Arbitration:
    """Return the arbitration that shares bandwidth alike, whoever asks.

    Examples
    --------
    >>> first_come().product()
    {'hbm': 1.0, 'cu': 0.0, 'priority': 1}
    """
    return Arbitration()


def compute_first(starvation: float) -> Arbitration:
    """Return the arbitration of T3-MCA: communication only takes what the product leaves.

    Parameters
    ----------
    starvation : float
        Share of the bandwidth that all communication together gets beside a burst of the product.

    Raises
    ------
    InvalidInputError
        The share is not within 0 to 1, or one of them: communication would never issue, or the product.

    Notes
    -----
    arXiv 2401.16677: communication issues while the queue of the memory is under a threshold that is set from the
    memory intensity of the product, or after it has waited for a limit. The threshold bounds how many accesses of
    communication stand before a burst when it begins, some ten ns, which shares of bandwidth do not see; the limit is
    the share here.

    Examples
    --------
    >>> compute_first(0.1)
    Arbitration(held=0.9, needed=1.0)
    """
    if not 0 < starvation < 1:
        raise InvalidInputError(f"a starvation share of {starvation}: give more than 0 and less than 1")
    return Arbitration(1.0 - starvation, 1.0)
