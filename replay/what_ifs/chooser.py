"""Choosing a FiCCO schedule by a small decision tree (arXiv 2512.10236).

`features_of` gives the features of a coupled product that are known before anything runs. A `Chooser` asks a tree of
decisions about them. `score_choices` compares choices with simulated times.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from profilers.errors import BrokenFileError, NotFoundError
from profilers.trace.arrays import Floats
from replay.costs.collectives import links_of
from replay.costs.products import Product
from replay.what_ifs.schedules import CANDIDATES, CoupledProduct
from replay.workloads.architecture import read_or_shipped

#: Features by name, and what they are.
FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "log_m": "log2 of the rows of the gathered operand",
        "log_n": "log2 of the columns of the products of all devices together",
        "log_k": "log2 of the depth",
        "log_ranks": "log2 of the devices of the group",
        "m_over_k": "log2 of rows over depth",
        "otb": "log2 of FLOP per byte of one device's product, 2 m n k over its bytes",
        "mt": "log2 of elements of one device's operands and result, m k + n k + m n",
        "transfer_over_product": "log2 of the transfer's time over the product's, by rates of links and arithmetic",
        "local_waves": "share of whole waves that the product with the local shard fills",
        "remote_waves": "the same of the fused product of a step with all peers' pieces",
        "fine_waves": "the same of the product with one peer's piece",
        "fine_tiles": "log2 of the workgroups of the product with one peer's piece over the compute units",
    }
)


def features_of(coupled: CoupledProduct) -> dict[str, float]:
    """Return the features of a coupled product, by the names of `FEATURES`.

    Source: the heuristic of FiCCO (arXiv 2512.10236) uses the operation to byte ratio, memory traffic, and rows
    against depth.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.collectives import Topology
    >>> product = Product(16384, 2048, 131072, find_device("MI300X"))
    >>> features = features_of(CoupledProduct(product, "all_gather", Topology(8, fabric="mesh")))
    >>> features["log_m"], features["m_over_k"], round(2 ** features["otb"])
    (14.0, -3.0, 1796)
    """
    whole, n = coupled.product, coupled.topology.n_workers
    fine = replace(whole, m=whole.m // n**2)
    transfer = coupled.transfer.sent_bytes / links_of(whole.device, coupled.topology).port
    elements = whole.m * whole.k + whole.k * whole.n + whole.m * whole.n
    return {
        "log_m": log2(whole.m),
        "log_n": log2(whole.n * n),
        "log_k": log2(whole.k),
        "log_ranks": log2(n),
        "m_over_k": log2(whole.m / whole.k),
        "otb": log2(whole.flops / sum(whole.operand_bytes)),
        "mt": log2(elements),
        "transfer_over_product": log2(transfer * whole.device.flops_per_s(whole.dtype) / whole.flops),
        "local_waves": _filled(replace(whole, m=whole.m // n)),
        "remote_waves": _filled(replace(whole, m=fine.m * (n - 1))),
        "fine_waves": _filled(fine),
        "fine_tiles": log2(fine.workgroups / fine.device.compute_units),
    }


def _filled(product: Product) -> float:
    waves = product.workgroups / product.device.compute_units
    return waves / ceil(waves)


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question about one feature.

    Parameters
    ----------
    feature : str
        One of `FEATURES`.
    threshold : float
        Value of the feature that separates the two sides.
    below, above : Decision or str
        What follows if the feature is at most the threshold, and if it is more: a question, or a schedule.
    """

    feature: str
    threshold: float
    below: "Decision | str"
    above: "Decision | str"


class Chooser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tree of decisions, and how it was grown.

    Parameters
    ----------
    tree : Decision or str
        Root of the tree.
    made_by : str
        Program that grew it.
    scenarios : int
        Number of simulated products that it was grown on.
    seed : int
        Seed with which these were drawn.
    """

    tree: Decision | str
    made_by: str = ""
    scenarios: int = 0
    seed: int = 0

    def choose(self, coupled: CoupledProduct) -> str:
        """Return the name of a schedule, one of `replay.what_ifs.schedules.CANDIDATES`."""
        features, node = features_of(coupled), self.tree
        while isinstance(node, Decision):
            node = node.below if features[node.feature] <= node.threshold else node.above
        return node


def load_chooser(path: str | Path | None = None) -> Chooser:
    """Read a chooser from a file in the layout of `datasets/fits/ficco.json`, by default that one.

    Raises
    ------
    NotFoundError, BrokenFileError
        There is no such file; or it holds no such tree: the message says what is wrong and where.

    Examples
    --------
    >>> isinstance(load_chooser().tree, Decision)
    True
    """
    return read_or_shipped(_read, path, "fits/ficco.json")


def _read(file: Path) -> Chooser:
    try:
        chooser = msgspec.json.decode(file.read_bytes(), type=Chooser)
    except FileNotFoundError as error:
        raise NotFoundError(f"{file}: no such file of a chooser") from error
    except (msgspec.DecodeError, OSError, RecursionError, UnicodeDecodeError) as error:
        raise BrokenFileError(f"{file}: no chooser ({error}); see datasets/fits/ficco.json") from error
    nodes = [chooser.tree]
    while nodes:
        node = nodes.pop()
        known, name = (CANDIDATES, node) if isinstance(node, str) else (tuple(FEATURES), node.feature)
        if name not in known:
            raise BrokenFileError(f"{file}: no chooser knows {name[:40]!r}; give one of {', '.join(known)}")
        if isinstance(node, Decision):
            nodes += [node.below, node.above]
    return chooser


#: A schedule that takes at most so much longer than the fastest is right too.
_CLOSE = 0.01


@dataclass(frozen=True)
class ScheduleScore:
    """Comparison of choices with the fastest schedules.

    Parameters
    ----------
    best : int
        Choices that are the fastest.
    right : int
        Choices that are, or take at most 1 % longer.
    cases : int
        Number of choices.
    loss_when_wrong : float
        Mean of how much longer a choice that is not right takes than the fastest, as a share; 0 if all are right.
    mean_loss : float
        The same over all choices.
    """

    best: int
    right: int
    cases: int
    loss_when_wrong: float
    mean_loss: float


def score_choices(
    coupled: Sequence[CoupledProduct], times_ns: Floats, choose: Callable[[CoupledProduct], str]
) -> ScheduleScore:
    """Return how good choices are.

    Parameters
    ----------
    coupled : sequence of CoupledProduct
        Products to choose for.
    times_ns : array of float64, shape (n, len(CANDIDATES))
        Time of each product under each schedule.
    choose : callable
        Returns the name of a schedule.
    """
    chosen = np.array([CANDIDATES.index(choose(product)) for product in coupled])
    loss = times_ns[np.arange(len(chosen)), chosen] / times_ns.min(axis=1) - 1.0
    wrong = loss > _CLOSE
    return ScheduleScore(
        best=int((chosen == times_ns.argmin(axis=1)).sum()),
        right=int((~wrong).sum()),
        cases=len(chosen),
        loss_when_wrong=float(loss[wrong].mean()) if wrong.any() else 0.0,
        mean_loss=float(loss.mean()),
    )
