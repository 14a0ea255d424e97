"""`Costs`: what launches, packing, synchronisation and messages cost beside computing and carrying bytes."""

from dataclasses import dataclass, replace

from profilers.errors import InvalidInputError
from replay.collectives.prior import PROTOCOLS
from replay.parameters import Parameters, load_parameters

__all__ = ["Costs"]


@dataclass(frozen=True)
class Costs:
    """Overheads of both ways to compute and exchange, in ns unless said otherwise.

    Parameters
    ----------
    launch_ns : float
        Of each kernel, from when it could start to its first work.
    sync_ns : float
        From one stream to another: an event that is recorded and waited for.
    packs : float
        How often a separate kernel reads and writes what is then sent: 1, or 0 where the layout already fits.
    library : float
        Share of a communication library's latencies that a collective pays: 1, or 0 for none.
    put_ns : float
        From the end of a put to the receiver's sight of its flag.
    store_ns : float
        The same of stores to a peer of the node.
    issue_ns : float
        The adapter's time for a put beside its bytes.
    occupancy_loss : float
        Share of the resident workgroups that the fused kernel lacks, below 1.
    store_share : float
        Of what a library's copies reach over a link in a node, what stores of workgroups reach.
    memory_share : float
        Of the peak memory bandwidth, what streaming kernels reach.

    Raises
    ------
    InvalidInputError
        A time or count is negative, or a share is not within its range.
    """

    launch_ns: float
    sync_ns: float
    packs: float
    library: float
    put_ns: float
    store_ns: float
    issue_ns: float
    occupancy_loss: float
    store_share: float
    memory_share: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0 or value == float("inf"):
                raise InvalidInputError(f"{name} is {value}; it must be finite and not negative")
        if self.occupancy_loss >= 1:
            raise InvalidInputError(f"an occupancy loss of {self.occupancy_loss}; it must be below 1")
        for name in ("store_share", "memory_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}; it must be above 0, and at most 1")

    @classmethod
    def of(cls, parameters: Parameters | None = None) -> "Costs":
        """Return the costs that the parameters give, by default the shipped ones.

        Notes
        -----
        A put or store with its flag costs what a step of a ring costs that sends a flag with every 4 bytes: NCCL's
        LL protocol (`replay.collectives.prior.PROTOCOLS`). The other figures are in `datasets/parameters.toml`.

        Examples
        --------
        >>> Costs.of().occupancy_loss
        0.125
        """
        known = load_parameters() if parameters is None else parameters
        steps = PROTOCOLS["LL"].step_s
        return cls(
            launch_ns=known["kernel_floor_amd_ns"],
            sync_ns=known["stream_sync_ns"],
            packs=1.0,
            library=1.0,
            put_ns=steps["network"] * 1e9,
            store_ns=steps["device"] * 1e9,
            issue_ns=known["put_issue_ns"],
            occupancy_loss=known["persistent_occupancy_loss"],
            store_share=known["store_link_share"],
            memory_share=known["hbm_share_memory_bound"],
        )

    def without_overheads(self) -> "Costs":
        """Return costs of computing and carrying bytes alone; the loss of occupancy stays."""
        nothing = dict.fromkeys(("launch_ns", "sync_ns", "packs", "library", "put_ns", "store_ns", "issue_ns"), 0.0)
        return replace(self, **nothing, store_share=1.0)
