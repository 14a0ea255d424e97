"""Regenerate datasets/fits/gemm_variants_mi100_fp16.json: kernels of rocBLAS, with the constants of MI100 FP32.

    python benchmarks/gemms/library_of_winners.py ../shared/data/gemm_variants datasets/fits

The kernels are the distinct tiles, splits and workgroups with matrix instructions that win an FP16 GEMM in rocBLAS.
No table of FP16 candidates of the MI100 exists, so that kernels have no effects.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from replay.calibration.tables import MeasuredTable
from replay.gemms.candidates import known_columns, recorded_columns
from replay.gemms.gemm import Variants
from replay.gemms.variant_model import VariantFit, VariantModel, read_variant_fit, write_variant_fit

WINNERS = "rocblas_mi100_winners.parquet"


def library(data: Path, fits: Path) -> VariantFit:
    """Return the library of MI100 FP16."""
    fitted = read_variant_fit(fits / "gemm_variants_mi100_fp32.json")
    table = MeasuredTable.read(data / WINNERS)
    assert table is not None
    columns = recorded_columns(table)
    rows = np.flatnonzero((table.texts("dtype_in") == "f16") & (columns["matrix_rows"] > 0))
    names = [name for name in columns if name != "lds_bytes"]
    _, first = np.unique(np.column_stack([columns[name][rows] for name in names]), axis=0, return_index=True)
    variants = Variants.of(**known_columns(columns, rows[first]))
    source = f"{WINNERS}: {len(first)} kernels of FP16; constants of {fitted.source}"
    numbered = replace(variants, candidate=np.full(len(variants), -1))
    return VariantFit(fitted.device, "fp16", numbered, VariantModel(fitted.model.constants), source)


if __name__ == "__main__":
    write_variant_fit(
        Path(sys.argv[2]) / "gemm_variants_mi100_fp16.json", library(Path(sys.argv[1]), Path(sys.argv[2]))
    )
