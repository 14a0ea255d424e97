"""Measure how fast GO-kernels are found and degrees of concurrency are chosen.

    python benchmarks/gemms/speed_of_degrees.py ../shared/data/gemm_variants

The GEMMs are those of the tables of measured candidates: 47 of MI100 in FP32, and 159 of Vega 20 in FP16. Each is
searched at five degrees. One process, one core.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from profilers.devices.catalogue import find_device
from replay.costs.shipped import load_parameters
from replay.gemms import DEGREES, Gemm, go_kernels, load_degree_predictor
from replay.gemms.degrees import features_of

TABLES = {
    "tensile_candidates_mi100_f32.parquet": ("MI100", "fp32"),
    "tensile_candidates_vega20_f16.parquet": ("MI50", "fp16"),
}
_SHAPE = ["m", "n", "k", "batch", "transpose_a", "transpose_b"]
N_DECISIONS = 10_000


def read_gemms(file: Path, dtype: str) -> list[Gemm]:
    """Return the GEMMs of a table."""
    shapes = pq.read_table(file, columns=_SHAPE).to_pandas().drop_duplicates().astype(int)
    return [Gemm(m, n, k, batch, dtype, bool(a), bool(b)) for m, n, k, batch, a, b in shapes.itertuples(index=False)]


def search(file: Path, name: str, dtype: str) -> list[Gemm]:
    """Search the GO-kernels of a table's GEMMs and print the time and what they gain; return the GEMMs."""
    gemms, device, parameters = read_gemms(file, dtype), find_device(name), load_parameters()
    go_kernels(gemms[:1], device=device, parameters=parameters)  # compiles the engine
    begin = time.perf_counter()
    kernels = go_kernels(gemms, device=device, parameters=parameters)
    print(f"{name} {dtype}: {len(gemms)} GEMMs x {len(DEGREES)} degrees in {time.perf_counter() - begin:.1f} s")
    for column, degree in enumerate(DEGREES):
        of = kernels[column :: len(DEGREES)]
        gains = [np.exp(np.mean(np.log([getattr(go, each) for go in of]))) for each in ("speedup", "default_speedup")]
        share = np.mean([not go.is_default for go in of])
        print(f"  degree {degree}: GO {gains[0]:.2f}, default {gains[1]:.2f}, other than isolated best {share:.0%}")
    return gemms


def main(folder: Path) -> None:
    """Search the tables, then time decisions."""
    gemms = [gemm for file, of in TABLES.items() for gemm in search(folder / file, *of)]
    predictor, device = load_degree_predictor(), find_device("MI100")
    many = (gemms * (N_DECISIONS // len(gemms) + 1))[:N_DECISIONS]
    available = np.resize([2, 3, 4, 8, 16], N_DECISIONS)
    begin = time.perf_counter()
    predictor.choose(many, available, device=device)
    chosen = time.perf_counter()
    features = features_of(many, available, device)
    ready = time.perf_counter()
    predictor.decide(features, np.resize([2, 4, 4, 8, 16], N_DECISIONS))
    decided = time.perf_counter()
    predictor.degree_of(many[0], 8, device=device)
    single = time.perf_counter()
    each = [1e9 * seconds / N_DECISIONS for seconds in (chosen - begin, decided - ready)]
    print(f"{N_DECISIONS} decisions in {chosen - begin:.3f} s: {each[0]:.0f} ns each, {each[1]:.0f} without features")
    print(f"one decision alone: {1e6 * (single - decided):.0f} us; {predictor.multiply_adds} multiply-adds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
