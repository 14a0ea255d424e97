"""Regenerate tests/accuracy/ablation.csv: what each effect of the contention model is worth on recordings of the H100.

    python benchmarks/contention/ablation.py > tests/accuracy/ablation.csv

An effect is taken away from the graphs of all scenarios. `shipped` rows keep the shipped parameters; `refitted` rows
are fitted anew without the effect. Both are scored on the sets of works that neither was fitted to. A fit takes about
five minutes.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from types import MappingProxyType
from unittest import mock

import numpy as np

from profilers.files import dataset_path
from replay.calibration.parameters import Parameters
from replay.contention import ContentionFit, calibrate_contention, prediction, read_contention
from replay.costs.shipped import load_parameters
from replay.graph.graph import RESOURCES, UNIT_COLUMNS, KernelGraph
from seqpoint.validation.contention import predict_contention, score_by_mechanism, score_order

Change = Callable[[KernelGraph], KernelGraph]
COLUMNS = ("effect", "how", "scenarios", "median", "p90", "sm", "hbm", "order")
#: Share of a limit that a workgroup takes if the limit is taken away.
_NEXT_TO_NOTHING = 1e-9


def _zeroed(name: str) -> Change:
    return lambda graph: graph.with_tasks(**{name: np.zeros(len(graph.tasks))})


def _without_limits(graph: KernelGraph) -> KernelGraph:
    limits = (name for name in UNIT_COLUMNS if name != "unit_slots")
    return graph.with_tasks(**{name: np.full(len(graph.tasks), _NEXT_TO_NOTHING) for name in limits})


def _without_bandwidth(graph: KernelGraph) -> KernelGraph:
    demand = graph.tasks.demand.copy()
    demand[:, [RESOURCES.index("l2"), RESOURCES.index("hbm")]] = 0.0
    return graph.with_tasks(demand=demand)


def _none_stays(graph: KernelGraph) -> KernelGraph:
    return graph.with_tasks(stays=np.zeros(len(graph.tasks), bool))


def _none_in_rounds(graph: KernelGraph) -> KernelGraph:
    return graph.with_tasks(in_rounds=np.zeros(len(graph.tasks), bool))


EFFECTS = MappingProxyType(
    {
        "none taken away": lambda graph: graph,
        "limits by threads, registers and shared memory": _without_limits,
        "bandwidth of memory and of the L2 cache": _without_bandwidth,
        "latency of memory under load": _zeroed("memory_part"),
        "pressure by kernels that copy over the link to the host": _zeroed("pressure"),
        "bandwidth of a unit": _zeroed("unit_bandwidth"),
        "rounds": _none_in_rounds,
        "time before the first workgroup": _zeroed("start_ns"),
        "workgroups that stay": _none_stays,
        "arithmetic of a unit": _zeroed("unit_compute"),
    }
)


def rows(effect: str, parameters: Parameters) -> Iterator[dict[str, str]]:
    """Return the rows of one effect taken away: with the shipped parameters, and fitted anew."""
    recordings = [each for each in read_contention(dataset_path("measured")) if "H100" in each.device.name]
    complete = prediction.with_demands

    def without(graph: KernelGraph, values: Parameters) -> KernelGraph:
        return EFFECTS[effect](complete(graph, values))

    with mock.patch.object(prediction, "with_demands", without):
        fit = calibrate_contention(recordings, parameters=parameters)
        seen = {case.name for case in predict_contention(recordings, parameters, fit) if case.fitted}
        for how, with_fit in (("shipped", None), ("refitted", fit)):
            yield {"effect": effect, "how": how, **_score(recordings, parameters, with_fit, seen)}


def _score(
    recordings: list[prediction.ContentionRecording], parameters: Parameters, fit: ContentionFit | None, seen: set[str]
) -> dict[str, str]:
    cases = [case for case in predict_contention(recordings, parameters, fit) if case.name not in seen]
    by_mechanism = {each.mechanism: each for each in score_by_mechanism(cases)}
    every = by_mechanism["all"]
    shares = {
        "median": every.median,
        "p90": every.p90,
        "sm": by_mechanism["SM"].median,
        "hbm": by_mechanism["HBM"].median,
        "order": score_order(cases).share,
    }
    return {"scenarios": str(every.cases), **{name: f"{100 * share:.1f}" for name, share in shares.items()}}


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for effect in sys.argv[1:] or EFFECTS:
        for row in rows(effect, load_parameters()):
            writer.writerow(row)
            sys.stdout.flush()
