"""FiCCO what-if: a product and its collective run piece by piece, under a schedule (arXiv 2512.10236)."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.parameters import Parameters
from replay.costs.products import kernel_columns, product_ns, product_of_task
from replay.costs.wire_time import group_topology, likely_ranks, waits_apart
from replay.graph.graph import COLLECTIVE_KINDS, Basis, KernelGraph
from replay.what_ifs.chooser import load_chooser
from replay.what_ifs.schedules import (
    CARRIERS,
    GATHERING,
    LATE,
    SCATTERING,
    SCHEDULES,
    STUDIED,
    CoupledProduct,
    SchedulePlan,
    pattern_of,
)
from replay.what_ifs.splice import Splice, SplicePattern, splice, task_budget
from replay.what_ifs.targets import UNKNOWN_DEVICE, Target, Targets, consumers, groups_of, nothing_to_apply, producers
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name, what_if_text

_NAMES = ("auto", "shards", *STUDIED)
#: Bytes of a collective and of the operand that it brings agree within this factor.
_BYTES_FACTOR = 2.0
#: Differences of times up to this are rounding of the trace.
_ROUNDING_NS = 1.0
_SHARED = "the kernel beside them is another's already", "use one collective for each product: smaller buckets"
_NODES = "they go between nodes", "keep the groups of products inside a node, whose links DMA engines drive"
_ALONE = "their group is a single rank, which sends nothing", "record all ranks"
_SLOWER = (
    "the chooser expects no schedule to be faster",
    "larger products gain more: try longer sequences, or a schedule",
)
_FEW_ROWS = "the product has fewer rows than there are pieces", "use larger batches or longer sequences"
_OTHER_AMOUNT = (
    "they move another amount than the product reads or writes",
    "gather each operand, or scatter each result, by itself: smaller buckets",
)


@recipe(
    "communication",
    "ficco:auto",
    Argument(
        "schedule",
        f"auto (a decision tree chooses), {', '.join(_NAMES[1:])}",
        "text",
        (),
        "auto",
        "pieces",
    ),
    Argument("carrier", "of the bytes: dma, or units (kernels on compute units)", "text", CARRIERS, "dma"),
)
def ficco(schedule: str = "auto", carrier: str = "dma") -> WhatIf:
    """Compute on pieces of an all-gather or all-to-all as they arrive, by one of FiCCO's schedules.

    The what-if applies to a matrix product that reads the result of the collective. At most three copies or conversions
    may stand between; they are cut with it. The same schedules, turned round, apply to a product and the
    reduce-scatter of its result: pieces leave as they are computed, and kernels add what has come. Each of P devices
    cuts what it has for each peer into P pieces, and DMA engines send a piece to all peers at once.

    - ``shards``: a whole shard goes to one peer after the other, the usual overlap.
    - ``uniform_fused_1d``: a product for each step, of a piece of each shard's rows.
    - ``hetero_fused_1d``: the local shard apart, then a product for each step.
    - ``hetero_unfused_1d``: the local shard apart, then a product for each piece, on a stream for each peer.
    - ``uniform_fused_2d``: all rows and a part of the depth at a time; of a result, a part of its columns.
    - ``auto``: a decision tree chooses for each product, or leaves it as it is.

    A piece takes the traced time of its product times the modelled time of the piece over that of the whole, with its
    own waves and the whole's distances between rows. A copy takes `dma_latency_ns` and its bytes over the links of the
    device, times the traced time of the collective over the modelled one; its command takes `dma_command_ns`.

    Not modelled: launches of the pieces on the host, copies that put fused pieces together, and memory that fills up.
    If the trace has one rank of several, the time of a collective beyond the model is taken for waiting, and stays.

    Source: FiCCO (arXiv 2512.10236).

    Raises
    ------
    InvalidInputError, NotFoundError
        There is no such schedule.
    """
    if schedule.lstrip("-").isdigit():
        raise InvalidInputError(
            f"ficco:{schedule}: the number of pieces is that of the ranks; give a schedule instead of a number: "
            f"{', '.join(_NAMES)}"
        )
    if schedule not in _NAMES:
        raise unknown_name("ficco has no schedule", schedule, _NAMES)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        return _Ficco(graph, parameters, schedule, carrier).changed()

    def targets(graph: KernelGraph, parameters: Parameters) -> Targets:
        return _Ficco(graph, parameters, schedule, carrier).targets()[0]

    name = what_if_text("ficco", schedule, *([carrier] if carrier != CARRIERS[0] else []))
    return WhatIf(name, transform, targets=targets)


@dataclass(frozen=True)
class _Shape:
    """The coupled product of a group of targets, and whether its sizes are known."""

    coupled: CoupledProduct
    is_known: bool
    meets: bool  #: whether the ranks wait for each other in the graph


@dataclass(frozen=True)
class _PlacedPieces:
    """A pattern in the place of groups of targets."""

    splice: Splice
    late_ns: Floats  #: time of each collective that is taken for waiting, shape (groups, members)
    is_known: bool  #: whether the sizes of the products are known


class _Ficco:
    """The what-if on one graph."""

    def __init__(self, graph: KernelGraph, parameters: Parameters, schedule: str, carrier: str) -> None:
        self._graph, self._parameters, self._schedule, self._carrier = graph, parameters, schedule, carrier
        self._ranks: Ints = likely_ranks(graph)
        self._meets: Bools = waits_apart(graph)
        self._duration: Floats = graph.tasks.duration_ns

    def targets(self) -> tuple[Targets, dict[_Shape, list[list[Target]]]]:
        """Return the targets, and their groups by coupled product."""
        graph, device = self._graph, self._graph.hardware.device
        targets = consumers(graph, GATHERING, ("gemm",)).joined(producers(graph, (SCATTERING,), ("gemm",)))
        targets = _without_shared_kernels(targets)
        if device is None:
            return targets.without(targets.found, *UNKNOWN_DEVICE), {}
        shapes: dict[_Shape, list[list[Target]]] = defaultdict(list)
        missed: dict[tuple[str, str], list[Target]] = defaultdict(list)
        for group in groups_of(graph, targets.found):  # about 20 us each
            shape = self._shape(group[0], device)
            if isinstance(shape, _Shape):
                shapes[shape].append(group)
            else:
                missed[shape] += group
        for shape in [shape for shape in shapes if not self._gains(shape)]:
            missed[_SLOWER] += [target for group in shapes.pop(shape) for target in group]
        for reason, members in missed.items():
            targets = targets.without(members, *reason)
        return targets, shapes

    def _gains(self, shape: _Shape) -> bool:
        """Return whether the chooser names a schedule that ends sooner than the collective and the product in turn."""
        if self._schedule != "auto":
            return True
        if (name := self._name(shape)) == "serial":
            return False
        plan = SchedulePlan(shape.coupled, SCHEDULES[name], self._carrier)
        in_turn_ns = product_ns(shape.coupled.product, self._parameters)
        in_turn_ns += float(kernel_columns(shape.coupled.transfer, self._parameters)["duration_ns"])
        return pattern_of(plan, self._parameters).alone_ns() < in_turn_ns

    def _name(self, shape: _Shape) -> str:
        """Return the schedule of a coupled product."""
        return load_chooser().choose(shape.coupled) if self._schedule == "auto" else self._schedule

    def changed(self) -> KernelGraph:
        """Return the graph with a pattern in the place of each product and its collective."""
        targets, shapes = self.targets()
        if not shapes:
            return nothing_to_apply(self._graph, "ficco", targets)
        names: Counter[str] = Counter()
        placed: list[_PlacedPieces] = []
        for shape, groups in shapes.items():
            name = self._name(shape)
            names[name] += sum(map(len, groups))
            plan = SchedulePlan(shape.coupled, SCHEDULES[name], self._carrier)
            for members in sorted({len(group) for group in groups}):
                pattern = pattern_of(plan, self._parameters, members=members, budget=task_budget(len(targets.found)))
                placed.append(self._placed(shape, pattern, [group for group in groups if len(group) == members]))
        guessed = sum(len(group) for shape, groups in shapes.items() if not shape.is_known for group in groups)
        note = f"ficco: {targets.note}; {', '.join(f'{count} by {name}' for name, count in names.most_common())}"
        note += f"; sizes of {guessed} products from grid, bytes and duration" if guessed else ""
        return self._finished(splice(self._graph, [each.splice for each in placed]), placed).with_notes([note])

    def _shape(self, target: Target, device: Device) -> "_Shape | tuple[str, str]":
        """Return the coupled product of a target; or the reason why there is none, and advice."""
        tasks, row, kernel = self._graph.tasks, target.collective, target.kernel
        topology = group_topology(int(self._ranks[row]), device, self._graph.hardware.network)
        if topology.n_workers < 2:
            return _ALONE
        if topology.nodes > 1:
            return _NODES
        moved = float(tasks.bytes[row])
        sizes = {"result_bytes" if target.sends else "operand_bytes": moved}
        product, is_known = product_of_task(self._graph, kernel, device, **sizes)
        if is_known and moved:
            left, right, result = product.operand_bytes
            if not target.sends and not _agree(moved, left) and _agree(moved, right):
                product = replace(product, m=product.n, n=product.m)  # weights are gathered: the product, transposed
            elif not _agree(moved, result if target.sends else left):
                return _OTHER_AMOUNT
        if product.m < topology.n_workers**2:
            return _FEW_ROWS
        coupled = CoupledProduct(product, COLLECTIVE_KINDS[tasks.collective[row]], topology, moved)
        return _Shape(coupled, is_known, bool(self._meets[row]))

    def _placed(self, shape: _Shape, pattern: SplicePattern, groups: Sequence[Sequence[Target]]) -> _PlacedPieces:
        """Return the pattern for groups, with traced times over modelled ones as the ratios of its durations."""
        kernels_ns = np.array([[self._duration[list(target.kernels)].sum() for target in group] for group in groups])
        traced_ns = np.array([[self._duration[target.collective] for target in group] for group in groups])
        transfer_ns = float(kernel_columns(shape.coupled.transfer, self._parameters)["duration_ns"])
        late_ns = np.where(shape.meets | (traced_ns - transfer_ns <= _ROUNDING_NS), 0.0, traced_ns - transfer_ns)
        ratios = kernels_ns / product_ns(shape.coupled.product, self._parameters), (traced_ns - late_ns) / transfer_ns
        return _PlacedPieces(Splice(pattern, groups, *ratios), late_ns, shape.is_known)

    def _finished(self, graph: KernelGraph, placed: Sequence[_PlacedPieces]) -> KernelGraph:
        """Return the graph with the waits for late ranks, and with the basis of sizes that are not known."""
        duration, basis = graph.tasks.duration_ns.copy(), graph.tasks.basis.copy()
        first = len(self._graph.tasks)
        for each in placed:
            pattern = each.splice.pattern.graph
            rows = first + np.arange(len(each.splice.groups) * len(pattern.tasks)).reshape(-1, len(pattern.tasks))
            first += rows.size
            duration[rows[:, pattern.tasks.name == pattern.names.index(LATE)]] = each.late_ns
            if not each.is_known:
                basis[rows] = np.maximum(basis[rows], int(Basis.ASSUMED))
        return graph.with_tasks(duration_ns=duration, basis=basis)


def _agree(moved: float, operand: float) -> bool:
    return operand / _BYTES_FACTOR <= moved <= operand * _BYTES_FACTOR


def _without_shared_kernels(targets: Targets) -> Targets:
    """Return the targets without those whose kernels belong to an earlier one."""
    taken: set[int] = set()
    shared = []
    for target in targets.found:
        if taken.isdisjoint(target.kernels):
            taken.update(target.kernels)
        else:
            shared.append(target)
    meetings = {target.meeting for target in shared if target.meeting >= 0}
    shared += [target for target in targets.found if target.meeting in meetings and target not in shared]
    return targets.without(shared, *_SHARED) if shared else targets
