"""Train the predictor of the degree of concurrency on GEMMs in the engine, and score it on GEMMs that it never saw.

    python benchmarks/gemms/train_degree_predictor.py datasets/fits/gemm_degrees.json

GEMMs are drawn from layers of transformers, attention heads, GNMT, recurrent cells, experts and LoRA adapters. Each
runs in the engine at every degree, with its GO-kernels, on an MI100 and an A100. Scores go to stdout as CSV: families
that were left out of the training, and other devices. Progress goes to stderr. Run it again when the model of kernel
variants changes.
"""

import csv
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression, Ridge

from profilers.devices.catalogue import Device, find_device
from profilers.files import write_text
from profilers.trace.arrays import Floats, Ints
from replay.costs.shipped import load_parameters
from replay.gemms import DEGREES, Gemm, go_kernels
from replay.gemms.degrees import FEATURES, DegreePredictor, features_of

SEED, MADE_BY = 1, "benchmarks/gemms/train_degree_predictor.py"
#: Devices that the predictor learns from, one of each vendor, and others that score it: GEMMs of a family, and types.
TRAINED = (
    ("MI100", 150, ("fp32", "fp16")),
    ("A100-SXM4-80GB", 100, ("bf16", "tf32")),
)
OTHERS = (
    ("MI210", 50, ("fp32", "fp16")),
    ("MI50", 50, ("fp32", "fp16")),
    ("H100-SXM5-80GB", 50, ("bf16", "fp32")),
)
#: Degrees within this share of the fastest are as good as the fastest: a smaller one keeps fewer results waiting.
TOLERANCE = 0.02
#: Speed-ups below this are small: their error decides whether a degree above 1 is worth it.
SMALL_GAIN = 0.25
AVAILABLE = DEGREES[1:]
_Pick = Callable[..., int]
_Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Rows:
    """Decisions: features, largest degree, the smallest good degree as an index, and the speed-up of each degree."""

    features: Floats
    most: Ints
    label: Ints
    speedup: Floats

    def joined(self, *others: "Rows") -> "Rows":
        """Return these decisions and those of `others`."""
        every = (self, *others)
        return Rows(*(np.concatenate([getattr(rows, f.name) for rows in every]) for f in fields(Rows)))


def transformer(pick: _Pick) -> _Shape:
    """Return a product of a transformer's layer, forward or of its weights' gradient."""
    hidden = pick(256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192)
    tokens = pick(16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
    wide = 4 * hidden
    layers = (
        (tokens, hidden, hidden), (tokens, wide, hidden), (tokens, hidden, wide),
        (hidden, hidden, tokens), (wide, hidden, tokens),
    )  # fmt: skip
    return *layers[pick(*range(len(layers)))], 1


def attention(pick: _Pick) -> _Shape:
    """Return a product of attention heads: scores or their values."""
    length, depth = pick(64, 128, 192, 256, 384, 512, 768, 1024, 2048), pick(32, 64, 80, 128)
    shapes = ((length, length, depth), (length, depth, length))
    return *shapes[pick(0, 1)], pick(1, 1, 2, 4, 8, 12, 16)


def gnmt(pick: _Pick) -> _Shape:
    """Return a product of GNMT: a cell, its gradient, or the vocabulary."""
    batch, hidden = pick(16, 32, 64, 128, 256, 512), pick(512, 1024, 2048)
    shapes = ((4 * hidden, batch, hidden), (4 * hidden, batch, 2 * hidden), (batch, hidden, 4 * hidden))
    return *(*shapes, (batch, 32000, hidden))[pick(0, 0, 1, 2, 3)], 1


def recurrent(pick: _Pick) -> _Shape:
    """Return a product of a recurrent cell."""
    hidden, batch = pick(256, 512, 1024, 1536, 1760, 2048, 2560, 2816), pick(1, 8, 16, 32, 64, 128)
    gates = pick(1, 3, 4) * hidden
    return *((gates, batch, hidden), (batch, hidden, gates))[pick(0, 0, 1)], 1


def experts(pick: _Pick) -> _Shape:
    """Return a product of one expert."""
    hidden, tokens = pick(512, 768, 1024, 2048, 4096), pick(8, 16, 32, 64, 128, 256, 512, 1024)
    inner = pick(1, 2, 4) * hidden
    return *((tokens, inner, hidden), (tokens, hidden, inner))[pick(0, 1)], 1


def lora(pick: _Pick) -> _Shape:
    """Return a product of a LoRA adapter."""
    hidden, rank = pick(768, 1024, 2048, 4096, 5120), pick(8, 16, 32, 64, 128)
    tokens = pick(64, 128, 256, 512, 1024, 2048, 4096)
    return *((tokens, rank, hidden), (tokens, hidden, rank))[pick(0, 1)], 1


FAMILIES = (transformer, attention, gnmt, recurrent, experts, lora)


def draw(count: int, dtypes: Sequence[str], seed: int) -> dict[str, list[Gemm]]:
    """Draw up to `count` different GEMMs of each family."""
    random = np.random.default_rng(seed)

    def pick(*values: int) -> int:
        return int(random.choice(values))

    drawn: dict[str, list[Gemm]] = {}
    for family in FAMILIES:
        gemms: dict[Gemm, None] = {}
        for _ in range(20 * count):
            shape, layout = family(pick), random.integers(2, size=2).astype(bool).tolist()
            gemms[Gemm(*shape, dtypes[pick(*range(len(dtypes)))], *layout)] = None
            if len(gemms) == count:
                break
        drawn[family.__name__] = list(gemms)
    return drawn


def measure(device: Device, families: Mapping[str, list[Gemm]]) -> tuple[dict[str, Rows], list[dict[str, object]]]:
    """Return the decisions of each family, and rows on its GO-kernels, from the engine."""
    decisions, kernels = {}, []
    for name, gemms in families.items():
        begin = time.perf_counter()
        go = go_kernels(gemms, DEGREES, device=device, parameters=load_parameters())
        shape = (len(gemms), len(DEGREES))
        speedup, default = (
            np.array([getattr(each, of) for each in go]).reshape(shape) for of in ("speedup", "default_speedup")
        )
        changed = ~np.array([each.is_default for each in go]).reshape(shape)
        decisions[name] = _rows(gemms, speedup, device)
        for column, degree in enumerate(DEGREES):
            kernels.append({
                "device": device.name, "family": name, "degree": degree, "gemms": len(gemms),
                "not_isolated_best": changed[:, column].mean(), "go": _geomean(speedup[:, column]),
                "default": _geomean(default[:, column]), "go_over_default": _geomean((speedup / default)[:, column]),
                "most_over_default": (speedup / default)[:, column].max(), "least_default": default[:, column].min(),
            })  # fmt: skip
        print(f"{device.name} {name}: {len(gemms)} GEMMs in {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return decisions, kernels


def _rows(gemms: Sequence[Gemm], speedup: Floats, device: Device) -> Rows:
    degrees = np.array(DEGREES)
    rows = []
    for available in AVAILABLE:
        possible = np.where(degrees <= available, speedup, 0.0)
        good = possible >= possible.max(axis=1, keepdims=True) * (1 - TOLERANCE)
        most = np.full(len(gemms), available)
        rows.append(Rows(features_of(gemms, available, device), most, good.argmax(axis=1), possible))
    return rows[0].joined(*rows[1:])


def _geomean(values: Floats) -> float:
    return float(np.exp(np.log(values).mean()))


def train(families: Mapping[str, Rows], errors: npt.ArrayLike = 0.0) -> DegreePredictor:
    """Return the predictor that learnt from all decisions."""
    rows = next(iter(families.values())).joined(*list(families.values())[1:])
    mean, scale = rows.features.mean(axis=0), rows.features.std(axis=0)
    scale[scale == 0] = 1.0
    scaled = (rows.features - mean) / scale
    logit = LogisticRegression(max_iter=5000).fit(scaled, rows.label)
    weights, offsets = np.zeros((len(DEGREES), len(FEATURES))), np.full(len(DEGREES), -1e3)
    weights[logit.classes_], offsets[logit.classes_] = logit.coef_, logit.intercept_
    every = rows.most == DEGREES[-1]  # the speed-up of a degree depends on no number of GEMMs
    known = scaled[every] * (np.array(tuple(FEATURES)) != "log_available")
    gain = Ridge(1.0).fit(np.concatenate([known, known**2], axis=1), np.log(rows.speedup[every]))
    figures: dict[str, Any] = {
        "means": mean, "scales": scale, "weights": weights, "offsets": offsets, "gain_weights": gain.coef_,
        "gain_offsets": gain.intercept_, "gain_errors": np.broadcast_to(errors, len(DEGREES)),
    }  # fmt: skip
    return DegreePredictor(
        degrees=DEGREES, features=tuple(FEATURES), **{name: _rounded(value) for name, value in figures.items()},
        made_by=MADE_BY, seed=SEED, gemms=int(every.sum()), device=", ".join(name for name, *_ in TRAINED),
        tolerance=TOLERANCE,
    )  # fmt: skip


def _rounded(values: Floats) -> Any:
    if values.ndim > 1:
        return tuple(_rounded(row) for row in values)
    return tuple(float(f"{value:.6g}") for value in values)


def gain_errors(predictors: Sequence[DegreePredictor], left_out: Sequence[Rows]) -> Floats:
    """Return the error of small speed-ups of each degree, on families that a predictor did not learn from."""
    expected, true = [], []
    for predictor, rows in zip(predictors, left_out, strict=True):
        every = rows.most == DEGREES[-1]
        scaled = (rows.features[every] - predictor.means) / np.array(predictor.scales)
        squares = np.concatenate([scaled, scaled**2], axis=1)
        expected.append(squares @ np.array(predictor.gain_weights).T + predictor.gain_offsets)
        true.append(np.log(rows.speedup[every]))
    gain, error = np.concatenate(expected), np.concatenate(expected) - np.concatenate(true)
    return np.sqrt(np.array([np.mean(error[gain[:, k] < SMALL_GAIN, k] ** 2) for k in range(len(DEGREES))]))


def score(predictor: DegreePredictor, rows: Rows) -> dict[str, object]:
    """Return how good the chosen degrees are."""
    chosen = np.searchsorted(DEGREES, predictor.decide(rows.features, rows.most))
    speedup, best = rows.speedup[np.arange(len(chosen)), chosen], rows.speedup.max(axis=1)
    most = rows.speedup[np.arange(len(chosen)), np.searchsorted(DEGREES, rows.most)]
    return {
        "decisions": len(chosen), "right": (chosen == rows.label).mean(),
        "within_one": (np.abs(chosen - rows.label) <= 1).mean(), "loss": (best / speedup - 1).mean(),
        "loss_p90": np.quantile(best / speedup - 1, 0.9), "slower": (speedup < 1 - 1e-9).mean(),
        "least": speedup.min(), "speedup": _geomean(speedup), "best": _geomean(best), "all_at_once": _geomean(most),
        "all_least": most.min(), "degree": 2 ** np.mean(chosen), "one": (chosen == 0).mean(),
        "one_right": (rows.label == 0).mean(),
    }  # fmt: skip


def write_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows of equal columns to stdout as CSV."""
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    print()


def main(path: Path) -> None:
    """Train, score, and write the predictor."""
    families, kernels = {}, []
    trained = {}
    for number, (name, count, dtypes) in enumerate(TRAINED):
        trained[name], more = measure(find_device(name), draw(count, dtypes, SEED + 10 * number))
        kernels += more
        families = {key: families[key].joined(rows) if families else rows for key, rows in trained[name].items()}
    others = {}
    for other, number, types in OTHERS:
        others[other], more = measure(find_device(other), draw(number, types, SEED + 1))
        kernels += more
    rest = {left: {k: v for k, v in families.items() if k != left} for left in families}
    errors = gain_errors([train(rest[left]) for left in families], list(families.values()))
    scores = [
        {"device": name, "family": f"{left} (left out)", **score(train(rest[left], errors), rows)}
        for name, of_device in trained.items()
        for left, rows in of_device.items()
    ]
    predictor = train(families, errors)
    for device, decisions in {**trained, **others}.items():
        rows = next(iter(decisions.values())).joined(*list(decisions.values())[1:])
        label = "all (trained)" if device in trained else "all"
        scores.append({"device": device, "family": label, **score(predictor, rows)})
    write_table(kernels)
    write_table(scores)
    write_text(path, msgspec.json.format(msgspec.json.encode(predictor), indent=1).decode() + "\n")
    print(f"{path}: {predictor.gemms} GEMMs, {predictor.multiply_adds} multiply-adds a decision", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
