"""A training step of a recommendation model as a synthetic trace: embeddings, two MLPs, and what ranks exchange.

The step is that of DLRM (arXiv 1906.00091) as it is trained on many devices: each rank has tables of its own, and
copies of the MLPs. So pooled rows are exchanged all to all, and gradients of the MLPs are added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration, predict_collective
from replay.costs.kernels import KernelCalibration, predict
from replay.costs.wire_time import group_topology
from replay.graph.graph import Network
from replay.graph.operators import DTYPE_BYTES
from replay.workloads.architecture import checked_size
from replay.workloads.program import Collective, KernelCall, SyntheticJob, SyntheticStep, Wait
from replay.workloads.program_trace import write_trace

_SIZE, _INDEX_BYTES = DTYPE_BYTES["fp32"], 8
#: Elements that a wave of an embedding kernel sums, waves of a workgroup, and rows and columns of a product's tile.
_WAVE_ELEMENTS, _WAVES, _TILE = 128, 4, 128
#: Elements that a workgroup of a streaming kernel moves.
_BLOCK = 2048
_COMPUTE, _COMMUNICATION = 7, 20
_CALL_NS = 1_500


@dataclass(frozen=True)
class Dlrm:
    """Sizes of a recommendation model in training, FP32.

    Parameters
    ----------
    name : str
        Name of the model.
    batch, tables : int
        Samples and tables of one rank.
    pooling, dim : int
        Rows summed for a sample and table, and elements of a row.
    bottom, top : tuple of int
        Widths of the layers of the two MLPs, the input first.
    source : str
        Source of the sizes, in words.

    Raises
    ------
    InvalidInputError
        A size is no whole number of 1 or more, or an MLP has no layer.
    """

    name: str = "dlrm"
    batch: int = 4096
    tables: int = 16
    pooling: int = 10
    dim: int = 256
    bottom: tuple[int, ...] = (2048, 2048, 2048, 256)
    top: tuple[int, ...] = (2048, 2048, 2048, 1024, 1)
    source: str = ""

    def __post_init__(self) -> None:
        for size in ("batch", "tables", "pooling", "dim"):
            object.__setattr__(self, size, checked_size(f"{self.name}: {size}", getattr(self, size)))
        for mlp in ("bottom", "top"):
            widths = tuple(checked_size(f"{self.name}: {mlp}", width) for width in getattr(self, mlp))
            if len(widths) < 2:
                raise InvalidInputError(f"{self.name}: {mlp} is {widths}; give the widths of two layers or more")
            object.__setattr__(self, mlp, widths)


@dataclass(frozen=True)
class Cluster:
    """Ranks of one group, a device each, and the network between their nodes.

    Parameters
    ----------
    name : str
        Name of the cluster.
    device : str
        Name of the device in the catalogue.
    nodes, devices_per_node : int
        Nodes, and devices of each.
    adapters_per_node : int
        Network adapters of a node; 0 for the catalogue's number, or one a device.
    adapter_gbps : float
        Bandwidth of an adapter by its data sheet, one way, GB/s; 0 for the catalogue's.
    source : str
        Source of the figures, in words.

    Raises
    ------
    InvalidInputError
        The catalogue has no such device, or there are not two ranks or more.

    Examples
    --------
    >>> Cluster("pair", "MI210", 2, 1).ranks
    2
    """

    name: str
    device: str
    nodes: int
    devices_per_node: int
    adapters_per_node: int = 0
    adapter_gbps: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        try:
            find_device(self.device)
        except NotFoundError as error:
            raise InvalidInputError(f"{self.name}: {error}") from error
        if checked_size("nodes", self.nodes) * checked_size("devices_per_node", self.devices_per_node) == 1:
            raise InvalidInputError(f"{self.name}: one rank exchanges nothing; give 2 ranks or more")

    @property
    def ranks(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def network(self) -> Network:
        """Nodes and the network between them, as a graph's hardware has them."""
        return Network(self.devices_per_node, self.adapters_per_node, self.adapter_gbps)


def nodes_of(ranks: int, node_devices: int, device: str) -> Cluster:
    """Return the cluster of some ranks, in nodes of so many devices or in a smaller one.

    Parameters
    ----------
    ranks, node_devices : int
        Ranks, a device each, and devices of a full node.
    device : str
        Name of the device in the catalogue.

    Raises
    ------
    InvalidInputError
        The ranks do not fill their nodes, or there is a single one.

    Examples
    --------
    >>> nodes_of(16, 8, "MI210").nodes, nodes_of(4, 8, "MI210").devices_per_node
    (2, 4)
    """
    in_node = min(ranks, node_devices)
    if ranks % max(in_node, 1):
        raise InvalidInputError(f"{ranks} ranks do not fill nodes of {in_node}: change the one or the other")
    return Cluster("ranks", device, ranks // max(in_node, 1), in_node)


@dataclass
class LayerWriter:
    """Kernels and collectives of one rank that stands for all, with the durations of the models.

    Each kernel waits for the one before it; a collective waits for the kernel before it on another stream.

    Parameters
    ----------
    cluster : Cluster
        Ranks, their device and their links.
    parameters : Parameters
        With calibrations of kernels and collectives.
    dtype : str
        Data type of products and collectives, one of `profilers.devices.DTYPES`.
    gap_ns : int
        Pause before a kernel that follows another: a launch that did not overlap.
    calls : list of KernelCall
        Program so far.
    """

    cluster: Cluster
    parameters: Parameters
    dtype: str = "fp32"
    gap_ns: int = 0
    calls: list[KernelCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = find_device(self.cluster.device)

    def stream(self, name: str, op: str, moved_bytes: float, workgroups: int = 0, *, after: Sequence[int] = ()) -> int:
        """Append a kernel that streams through memory; return its position.

        Parameters
        ----------
        name, op : str
            Name of the kernel and of its operator.
        moved_bytes : float
            Bytes that it reads and writes.
        workgroups : int
            Workgroups; by default one for 2,048 elements.
        after : sequence of int
            Collectives for which it waits.
        """
        rate = self.device.memory_bytes_per_s * self.parameters["hbm_share_memory_bound"]
        groups = workgroups or max(int(moved_bytes / _SIZE) // _BLOCK, 1)
        call = KernelCall(name, op, _ns(moved_bytes / rate), _CALL_NS, _COMPUTE, workgroups=groups)
        return self._append(call, after)

    def embedding(self, rows: int, pooling: int, dim: int) -> int:
        """Append pooled look-ups; return their position.

        Memory carries every row that is summed, its index (8 bytes), and the sum. A wave sums up to 128 elements of a
        row, and a workgroup has four waves.

        Parameters
        ----------
        rows : int
            Samples times tables.
        pooling, dim : int
            Rows summed for each, and elements of a row, FP32.
        """
        moved = rows * pooling * (dim * _SIZE + _INDEX_BYTES) + rows * dim * _SIZE
        groups = -(-rows * -(-dim // _WAVE_ELEMENTS) // _WAVES)
        return self.stream("embedding_bag_kernel", "aten::embedding_bag", moved, groups)

    def pack(self, size: float) -> int:
        """Append a kernel that reads and writes a buffer of `size` bytes; return its position."""
        return self.stream("pack_copy_kernel", "aten::copy_", 2 * size)

    def products(self, shapes: Sequence[tuple[int, int, int]]) -> int:
        """Append matrix products of rows, columns and depth; return the position of the last."""
        calibration, dtype = self.parameters.calibration(KernelCalibration), self.dtype
        times = predict("matmul", [[1, *shape] for shape in shapes], self.device, calibration=calibration, dtype=dtype)
        for (m, n, k), seconds in zip(shapes, times.seconds.tolist(), strict=True):
            groups, right = -(-m // _TILE) * -(-n // _TILE), ((k, n),)
            name = f"synthetic_gemm_{dtype}_{_TILE}x{_TILE}"
            self._append(KernelCall(name, "aten::mm", _ns(seconds), _CALL_NS, _COMPUTE, (m, k), groups, operands=right))
        return len(self.calls) - 1

    def collective(self, kind: str, size: int) -> int:
        """Append a library's collective of `size` bytes that waits for the last kernel; return its position."""
        topology = group_topology(self.cluster.ranks, self.device, self.cluster.network)
        fits = self.parameters.calibration(CollectiveCalibration)
        seconds = float(predict_collective(kind, np.array([size]), topology, self.device, fits).seconds[0])
        elements = size // DTYPE_BYTES[self.dtype]
        exchange = Collective(kind, elements, "all", self.cluster.ranks)
        before = max(i for i, call in enumerate(self.calls) if call.exchange is None)
        name, sync = f"ncclDevKernel_{kind}", _ns(self.parameters["stream_sync_ns"] / 1e9)
        self.calls.append(KernelCall(name, f"nccl:{kind}", _ns(seconds), _CALL_NS, _COMMUNICATION, (elements,),
                                     24, (before,), exchange, lag_ns=sync))  # fmt: skip
        return len(self.calls) - 1

    def _append(self, call: KernelCall, after: Sequence[int] = ()) -> int:
        """Append a kernel, which starts an event's time after collectives that it waits for; return its position."""
        gap_ns = self.gap_ns if self.calls else 0
        lag_ns = _ns(self.parameters["stream_sync_ns"] / 1e9) if after else gap_ns
        self.calls.append(replace(call, after=tuple(after), lag_ns=lag_ns))
        return len(self.calls) - 1


def _ns(seconds: float) -> int:
    return max(round(1e9 * seconds), 1)


def dlrm_trace(model: Dlrm, cluster: Cluster, *, parameters: Parameters, steps: int = 1) -> Trace:
    """Return the trace of training steps of a recommendation model, on one rank that stands for all.

    Forward: embeddings, and the all-to-all of their pooled rows, beside which the bottom MLP runs; interaction; top
    MLP. Backward: the same from the end, with an all-to-all of the gradients of pooled rows and the update of the
    tables. Gradients of each MLP are added up over the ranks as soon as they are computed.

    Parameters
    ----------
    model : Dlrm
        Sizes of the model.
    cluster : Cluster
        Ranks, their device and their links.
    parameters : Parameters
        With calibrations of kernels and collectives.
    steps : int
        Number of iterations, all alike.

    Notes
    -----
    Interaction reads and writes all pooled rows of the rank's samples, backward twice that. Its arithmetic, and
    activations, are assumed to be hidden behind that and the products. The update of tables reads the gradient, and
    reads and writes each row that was looked up.

    Raises
    ------
    InvalidInputError
        There is no step, or the catalogue lacks a figure of the device.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> model, cluster = Dlrm("small", 512, 4, 20, 64, (512, 64), (576, 1)), Cluster("node", "MI210", 1, 8)
    >>> trace = dlrm_trace(model, cluster, parameters=load_parameters())
    >>> trace.kernels.num_rows, trace.collectives["collective"].to_pylist()
    (17, ['all_to_all', 'all_reduce', 'all_to_all', 'all_reduce'])
    """
    if steps < 1:
        raise InvalidInputError(f"{steps} steps; a trace has at least one")
    writer = LayerWriter(cluster, parameters)
    _add_step(writer, model)
    program: list[KernelCall | Wait] = [*writer.calls, Wait()]
    name = f"iteration batch={model.batch}"
    step = SyntheticStep(name, 1, model.batch, [program])
    description = f"synthetic training of {model.name}, {model.tables} tables on each of {cluster.ranks} ranks"
    job = SyntheticJob(description, "dlrm", [step] * steps, cluster.ranks, "Float", _SIZE)
    return write_trace(job, writer.device)


def _add_step(writer: LayerWriter, model: Dlrm) -> None:
    """Append the kernels and collectives of a training step."""
    batch, ranks = model.batch, writer.cluster.ranks
    sent = batch * ranks * model.tables * model.dim * _SIZE
    pooled = float(batch * (model.tables * ranks + 1) * model.dim * _SIZE)
    writer.embedding(batch * ranks * model.tables, model.pooling, model.dim)
    writer.pack(sent)
    exchanged = writer.collective("all_to_all", sent)
    writer.products([(batch, n, k) for k, n in pairwise(model.bottom)])
    writer.stream("dot_interaction_kernel", "dlrm::interaction", 2 * pooled, after=[exchanged])
    writer.products([(batch, n, k) for k, n in pairwise(model.top)])
    writer.products(_backward(batch, model.top))
    top = writer.collective("all_reduce", _weight_bytes(model.top))
    writer.stream("dot_interaction_backward_kernel", "dlrm::interaction_backward", 4 * pooled)
    writer.pack(pooled)
    returned = writer.collective("all_to_all", sent)
    writer.products(_backward(batch, model.bottom))
    bottom = writer.collective("all_reduce", _weight_bytes(model.bottom))
    writer.stream("embedding_update_kernel", "dlrm::update", sent * (1 + 2 * model.pooling), after=[returned])
    weights = 3.0 * (_weight_bytes(model.top) + _weight_bytes(model.bottom))
    writer.stream("multi_tensor_sgd_kernel", "aten::_foreach_add_", weights, after=[top, bottom])


def _weight_bytes(widths: Sequence[int]) -> int:
    """Return the bytes of an MLP's weights."""
    return _SIZE * sum(a * b for a, b in pairwise(widths))


def _backward(batch: int, widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the products of a backward pass: gradients of inputs and of weights, from the last layer on."""
    layers = list(pairwise(widths))[::-1]
    return [shape for a, b in layers for shape in ((batch, a, b), (a, b, batch))]
