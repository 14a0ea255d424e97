"""Regenerate tests/accuracy/comp_vs_comm.csv: operators of other hidden sizes, predicted from those of one.

    python benchmarks/jobs/accuracy_of_scaling.py ../shared/data > tests/accuracy/comp_vs_comm.csv

The operators of a layer are taken as measured at one hidden size and number of tokens on one rank: four products, a
normalisation, and an all-reduce for each number of ranks. Those of other hidden sizes, tokens and tensor-parallel ranks
are predicted from them, by one of three strategies:

- work: time in proportion to FLOP, elements or bytes, as in arXiv 2302.02825
- models: times the ratio of what the shipped models say of the two operators
- models without device: the same, with models that have not seen the device
"""

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profilers.devices import find_device
from profilers.devices.catalogue import Device
from profilers.trace.arrays import Floats
from replay.costs.collectives import CollectiveCalibration, Topology, predict_collective
from replay.costs.kernels import KernelCalibration, predict
from replay.costs.shipped import load_parameters

COLUMNS = ("device", "library", "operator", "profiled", "strategy", "predicted", "mean_error", "median_error")
PROFILED_HIDDEN = (1024, 2048, 4096)
HIDDEN = (1024, 2048, 4096, 5120, 8192, 12288, 16384)
RANKS = (1, 2, 4, 8)
#: Tokens that are profiled, and the fewest and most that are predicted.
TOKENS, FEWEST, MOST = 4096, 1024, 32768
#: All-reduce that is profiled, bytes: that of 4096 tokens of a hidden size of 2048; and the range of sizes predicted.
PROFILED_BYTES, LEAST_BYTES, MOST_BYTES = 2**24, 2**21, 2**30
_SYSTEMS = {"a100_sxm": "A100-SXM4-80GB", "h100_sxm": "H100-SXM5-80GB", "b200_sxm": "B200-SXM-192GB"}
_NAMES = {
    "NVIDIA A100-PCIE-40GB": "A100-PCIE-40GB", "Tesla P100-PCIE-16GB": "P100-PCIE-16GB", "Tesla P4": "P4",
    "Tesla T4": "T4", "Tesla V100-PCIE-32GB": "V100-PCIE-32GB", "AMD Instinct MI100": "MI100",
}  # fmt: skip
Row = dict[str, str]
#: Predicts seconds of sizes; its argument leaves out a device's fits.
Model = Callable[[Floats, Sequence[str]], Floats]


@dataclass(frozen=True)
class Case:
    """Operators of one kind on one device: one is profiled, the others are predicted.

    Parameters
    ----------
    device, library, operator, profiled : str
        Cells of the table.
    anchor : (array, float)
        Sizes and seconds of the profiled operator.
    sizes, seconds : array
        Of the others.
    work : array
        FLOP, elements or bytes of the others over those of the profiled operator.
    model : callable
        Predicts seconds of sizes.
    """

    device: str
    library: str
    operator: str
    profiled: str
    anchor: tuple[Floats, float]
    sizes: Floats
    seconds: Floats
    work: Floats
    model: Model

    def errors(self, strategy: str) -> Floats:
        """Return the relative errors of a strategy."""
        sizes, seconds = self.anchor
        if strategy == "work":
            predicted = seconds * self.work
        else:
            without = (self.device,) if strategy.endswith("device") else ()
            modelled = self.model(np.vstack([sizes, self.sizes]), without)
            predicted = seconds * modelled[1:] / modelled[0]
        return np.abs(predicted / self.seconds - 1)


STRATEGIES = ("work", "models", "models without device")
PARAMETERS = load_parameters()


def kernel_model(kind: str, device: Device, dtype: str, launched: bool = False) -> Model:
    """Return the model of a kind of kernel on a device, or of operators whose times hold the launch."""
    fits = PARAMETERS.calibration(KernelCalibration)
    return lambda sizes, without: (
        predict(kind, sizes, device, calibration=fits.without(*without), dtype=dtype, launched=launched).seconds
    )


def collective_model(device: Device, ranks: int) -> Model:
    """Return the model of an all-reduce in one node of a device."""
    fits, topology = PARAMETERS.calibration(CollectiveCalibration), Topology(ranks)

    def model(sizes: Floats, without: Sequence[str]) -> Floats:
        kept = fits.without_device(device) if without else fits
        return predict_collective("all_reduce", sizes[:, 0], topology, device, kept).seconds

    return model


def products(folder: Path) -> Iterator[Case]:
    """Return the products of layers in BF16, each predicted from the one of its role in the layer."""
    table = pq.read_table(folder / "operators/aic_gemm.parquet").filter(pc.field("dtype") == "bfloat16")
    frame = table.to_pandas()
    for (system, library), rows in frame.groupby(["system", "framework"], observed=True):
        times = rows.groupby(["m_elements", "n_elements", "k_elements"]).latency_us.median()
        measured = {tuple(map(int, key)): 1e-6 * float(value) for key, value in times.items()}
        device = find_device(_SYSTEMS[system])
        model = kernel_model("matmul", device, "bf16")
        for hidden in PROFILED_HIDDEN:
            for role, (wide, deep) in {"qkv": (3, 1), "output": (1, 1), "up": (4, 1), "down": (1, 4)}.items():
                anchor = (TOKENS, wide * hidden, deep * hidden)
                if anchor not in measured:
                    continue
                # Ranks share the columns of the first product of a block, and the sums of the second.
                by_sums = role in ("output", "down")
                split = {
                    (wide * h, deep * h // n) if by_sums else (wide * h // n, deep * h)
                    for h in HIDDEN if h != hidden for n in RANKS
                }  # fmt: skip
                keys = [key for key in measured if key[1:] in split and FEWEST <= key[0] <= MOST]
                sizes, seconds = np.array(keys, dtype=float), np.array([measured[key] for key in keys])
                flops, batched = sizes.prod(axis=1) / np.prod(anchor), np.ones((len(sizes), 1))
                yield Case(device.name, library, f"product {role}", f"hidden {hidden}, {TOKENS} tokens",
                           (np.array([1.0, *anchor]), measured[anchor]), np.hstack([batched, sizes]), seconds, flops,
                           model)  # fmt: skip


def normalisations(folder: Path) -> Iterator[Case]:
    """Return normalisations in FP32; the profiled one is the nearest to a hidden size of 1024 and 8192 tokens."""
    for name in ("nvidia_ln", "amd_mi100_ln"):
        frame = pq.read_table(folder / f"kernels/{name}.parquet").to_pandas()
        for label, rows in frame.groupby("device", observed=True):
            sizes, seconds = rows[["B", "H"]].to_numpy(float), 1e-3 * rows.latency_ms.to_numpy(float)
            first = int(np.argmin(np.abs(np.log(sizes / (8192, 1024))).sum(axis=1)))
            others, (tokens, hidden) = np.arange(len(sizes)) != first, sizes[first]
            work = sizes[others].prod(axis=1) / sizes[first].prod()
            model = kernel_model("normalization", find_device(_NAMES[label]), "fp32", launched=True)
            yield Case(_NAMES[label], "pytorch", "normalisation", f"hidden {hidden:.0f}, {tokens:.0f} tokens",
                       (sizes[first], float(seconds[first])), sizes[others], seconds[others], work, model)  # fmt: skip


def all_reduces(folder: Path) -> Iterator[Case]:
    """Return all-reduces of NCCL in one node, from one size for each number of ranks."""
    frame = pq.read_table(folder / "collectives/aic_collectives.parquet").to_pandas()
    frame = frame[(frame.collective == "all_reduce") & (frame.library == "nccl") & (frame.dtype == "half")]
    for (system, ranks), rows in frame.groupby(["system", "ranks_count"], observed=True):
        times = 1e-6 * rows.groupby("message_bytes").time_us.median()
        measured = times[(times.index >= LEAST_BYTES) & (times.index <= MOST_BYTES)]
        first, others = float(times[PROFILED_BYTES]), measured[measured.index != PROFILED_BYTES]
        device, sizes = find_device(_SYSTEMS[system]), others.index.to_numpy(float)

        yield Case(device.name, "nccl", f"all-reduce, {ranks} ranks", f"{PROFILED_BYTES / 2**20:.0f} MiB",
                   (np.array([float(PROFILED_BYTES)]), first), sizes[:, None], others.to_numpy(float),
                   sizes / PROFILED_BYTES, collective_model(device, int(ranks)))  # fmt: skip


def table(folder: Path) -> list[Row]:
    """Return a row for each operator that is profiled, and each strategy; and means over kinds of operators."""
    rows, errors = [], dict[tuple[str, str], list[Floats]]()
    for case in (*products(folder), *normalisations(folder), *all_reduces(folder)):
        for strategy in STRATEGIES:
            each = case.errors(strategy)
            errors.setdefault((case.operator.split()[0].strip(","), strategy), []).append(each)
            rows.append(row((case.device, case.library, case.operator, case.profiled, strategy), each))
    whole = [
        row(("all", "all", kind, "all", strategy), np.concatenate(each)) for (kind, strategy), each in errors.items()
    ]
    return whole + rows


def row(names: Sequence[str], errors: Floats) -> Row:
    """Return a row of the table, with errors in %."""
    figures = (str(len(errors)), *(f"{100 * value:.2f}" for value in (errors.mean(), np.median(errors))))
    return dict(zip(COLUMNS, (*names, *figures), strict=True))


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
