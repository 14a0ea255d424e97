"""`SharingPolicy`: how a device is shared among the tasks that are active on it."""

from dataclasses import dataclass

from profilers.errors import InvalidInputError

__all__ = ["SharingPolicy"]


@dataclass(frozen=True)
class SharingPolicy:
    """How every device of a graph is shared.

    Parameters
    ----------
    partitions : tuple of float
        Shares of the compute units, at most 1 together; bit k of `Tasks.cu_mask` lets a task run on partition k.
    in_order : bool
        Whether workgroups are dispatched in the order of priority, then of arrival, and whoever comes later gets what
        is left. Otherwise all active tasks of the highest priority get equal parts, up to what they ask, and those of a
        lower one what is left.
    quantised : bool
        Whether fewer compute units cost whole waves, ceil(waves / share) instead of ceil(waves), rather than in
        proportion.
    power_exponent : float
        Above its limit a device lowers its clock to ``power ** (-1 / power_exponent)``: dynamic power goes with
        V^2 f, and V about with f.

    Raises
    ------
    InvalidInputError
        Partitions that are not above zero, more than the device together, or more than 62.
    """

    partitions: tuple[float, ...] = (1.0,)
    in_order: bool = True
    quantised: bool = False
    power_exponent: float = 3.0

    def __post_init__(self) -> None:
        fine = all(0 < share <= 1 for share in self.partitions) and 0 < sum(self.partitions) <= 1 + 1e-9
        if not fine or len(self.partitions) > 62:
            raise InvalidInputError(
                f"partitions {self.partitions}: give at most 62 shares above zero that are at most 1 together"
            )
        if not self.power_exponent >= 1:
            raise InvalidInputError(f"a power exponent of {self.power_exponent}: give 1 or more")
