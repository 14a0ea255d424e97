"""`TrainingJob`: a transformer, its batch, and how it is split over devices."""

from dataclasses import dataclass

from profilers.errors import InvalidInputError
from replay.collectives import Topology
from replay.jobs.architecture import Transformer
from replay.sizes import checked_size

__all__ = ["Layout", "TrainingJob"]

#: Of one kind of parallelism, and devices of a node.
_MOST_RANKS = 2**20
#: Micro-batches of all stages, which the schedule goes through one by one.
_MOST_SCHEDULED = 2**20


@dataclass(frozen=True)
class Layout:
    """How a job is split: ranks of a tensor-parallel group are neighbours, then replicas, then pipeline stages.

    Parameters
    ----------
    tensor, data, pipeline : int
        Ranks that share a layer; replicas of the model; stages, each with as many layers.
    node_devices : int
        Devices of a node.

    Raises
    ------
    InvalidInputError
        One is no whole number, below one or above 2^20.

    Examples
    --------
    >>> Layout(4, 2, 2).devices, Layout(4, 2, 2).topology("data").nodes, Layout(4, 2, 2).topology("pipeline").link
    (16, 1, 'network')
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    node_devices: int = 8

    def __post_init__(self) -> None:
        for name in ("tensor", "data", "pipeline", "node_devices"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name), _MOST_RANKS))

    @property
    def devices(self) -> int:
        """Devices of the job."""
        return self.tensor * self.data * self.pipeline

    def topology(self, group: str) -> Topology:
        """Return where the ranks of a group are: ``"tensor"``, ``"data"``, or two neighbours of ``"pipeline"``."""
        stride = {"tensor": 1, "data": self.tensor, "pipeline": self.tensor * self.data}[group]
        size = {"tensor": self.tensor, "data": self.data, "pipeline": min(self.pipeline, 2)}[group]
        node = self.node_devices
        here = max(min(size, node // stride), 1)
        while size % here:
            here -= 1
        groups = max(min(stride, node), 1)
        return Topology(size, here, max(node, here), nics=max(1, node // 2 // groups))


@dataclass(frozen=True)
class TrainingJob:
    """One training step of a transformer, in 16 bits with FP32 copies of the weights (arXiv 1710.03740) and Adam.

    Parameters
    ----------
    model : Transformer
    length : int
        Tokens of a sequence.
    global_batch, micro_batch : int
        Sequences of a step, and of what goes through a stage at once.
    layout : Layout
    recompute : bool
        Whether the forward pass of a layer is run again before its backward pass, instead of keeping activations.

    Raises
    ------
    InvalidInputError
        Sizes are no whole numbers, below one, too large, or do not divide: micro-batches and replicas the batch,
        stages the layers, ranks the heads.

    Examples
    --------
    >>> model = Transformer("gpt", "megatron", 24, 2048, 16, 8192, 51200)
    >>> TrainingJob(model, 1024, 64, 4, Layout(2, 2, 2)).micro_batches
    8
    """

    model: Transformer
    length: int
    global_batch: int
    micro_batch: int
    layout: Layout = Layout()
    recompute: bool = False

    def __post_init__(self) -> None:
        for name in ("length", "global_batch", "micro_batch"):
            object.__setattr__(self, name, checked_size(name, getattr(self, name)))
        layout, model = self.layout, self.model
        if self.global_batch % (self.micro_batch * layout.data):
            raise InvalidInputError(
                f"{layout.data} replicas of micro-batches of {self.micro_batch} do not divide "
                f"a batch of {self.global_batch}"
            )
        if model.layers % layout.pipeline:
            raise InvalidInputError(f"{layout.pipeline} stages do not divide {model.layers} layers")
        if layout.pipeline * self.micro_batches > _MOST_SCHEDULED:
            raise InvalidInputError(
                f"{self.micro_batches} micro-batches through {layout.pipeline} stages; at most {_MOST_SCHEDULED:,} "
                "in all are scheduled: take a smaller batch, larger micro-batches or more replicas"
            )
        for name, size in (("heads", model.heads), ("feedforward", model.feedforward), ("hidden", model.hidden)):
            if size % layout.tensor:
                raise InvalidInputError(f"{layout.tensor} tensor-parallel ranks do not divide {name} of {size}")

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica."""
        return self.global_batch // (self.micro_batch * self.layout.data)
