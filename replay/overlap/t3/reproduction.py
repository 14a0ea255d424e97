"""T3's published figures, from its own set-up (`datasets/published/t3.toml`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from replay.overlap.t3.closed_forms import near_memory_gain, speedup_beside_few_units, with_link
from replay.overlap.t3.outcome import Outcome, study
from replay.overlap.t3.workload import load_workload
from replay.parameters import Parameters

__all__ = ["reproduce", "studied"]

#: Models of the main figures, and those of about 500 billion parameters.
_MODELS, _LARGE = ("mega_gpt2", "t_nlg"), ("palm", "mt_nlg")
#: The closed forms' link, GB/s: both directions of the ring.
_RING_GBPS = 150.0
#: Nearly the same speed-up.
_ABOUT = 0.02


def reproduce(parameters: Parameters | None = None) -> dict[str, float]:
    """Return our figure for each of `datasets/published/t3.toml`.

    Parameters
    ----------
    parameters : Parameters, optional
        By default the shipped ones.
    """
    known = studied((*_MODELS, *_LARGE), parameters)
    main = [one for one in known if one.sublayer.model in _MODELS]
    large = [one for one in known if one.sublayer.model in _LARGE]
    mca = _gains([one.speedup(one.t3_mca) for one in main])
    first = _gains([one.speedup(one.t3) for one in main])
    ideal = _gains([one.ideal_speedup for one in main])
    saved = [one.movement_saved for one in main]
    return {
        "mca_geomean": mca[0],
        "mca_max": mca[1],
        "mca_large_geomean": _gains([one.speedup(one.t3_mca) for one in large])[0],
        "t3_geomean": first[0],
        "t3_max": first[1],
        "ideal_geomean": ideal[0],
        "ideal_max": ideal[1],
        "movement_geomean": 100 * (1 - float(np.exp(np.mean(np.log1p(np.negative(saved)))))),
        "movement_max": 100 * max(saved),
        **_closed_forms(main),
        **_orders(known),
    }


def studied(models: Iterable[str], parameters: Parameters | None = None) -> list[Outcome]:
    """Return the outcome of every sub-layer of some models; sub-layers with the same product are simulated once."""
    known: dict[tuple[int, ...], Outcome] = {}
    found = []
    for one in load_workload().sublayers.values():
        if one.model in models:
            shape = (one.tokens, one.hidden, one.factor, one.workers)
            if shape not in known:
                known[shape] = study(one, None, parameters)
            found.append(replace(known[shape], sublayer=one))
    return found


def _gains(speedups: Sequence[float]) -> tuple[float, float]:
    """Return the geometric mean and the largest of speed-ups, % above 1."""
    return 100 * (float(np.exp(np.mean(np.log(speedups)))) - 1), 100 * (max(speedups) - 1)


def _closed_forms(known: Sequence[Outcome]) -> dict[str, float]:
    system = with_link(load_workload().system, _RING_GBPS)
    forms = {"few_units": speedup_beside_few_units(1.67, 1.41, 8 / system.device.compute_units)}
    for workers in (8, 16):
        one = next(one for one in known if one.sublayer.workers == workers)
        before, after = one.baseline.movement_bytes, one.t3.movement_bytes
        forms[f"rs_reads_{workers}"] = before["RS reads"] / after["RS reads"]
        forms[f"writes_{workers}"] = 100 * (_writes(after) / _writes(before) - 1)
        forms[f"near_memory_gain_{workers}"] = 100 * near_memory_gain(system, workers)
    return forms


def _writes(movement: Mapping[str, float]) -> float:
    return movement["GEMM writes"] + movement["RS writes"]


def _orders(known: Sequence[Outcome]) -> dict[str, float]:
    """Return in how many sub-layers each order holds, and whether all hold of the means."""
    rows = np.array([(1.0, o.speedup(o.t3), o.speedup(o.t3_mca), o.ideal_speedup) for o in known])
    means = np.exp(np.log(rows).mean(axis=0))
    return {
        "order_of_means": float((np.diff(means) > 0).all()),
        "order_t3_over_sequential": float((rows[:, 1] > 1).sum()),
        "order_mca_over_t3": float((rows[:, 2] > rows[:, 1]).sum()),
        "order_mca_about_t3_or_over": float((rows[:, 2] > rows[:, 1] * (1 - _ABOUT)).sum()),
        "order_ideal_about_mca_or_over": float((rows[:, 2] <= rows[:, 3] * (1 + _ABOUT)).sum()),
    }
