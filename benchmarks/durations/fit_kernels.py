"""Make the shipped fits of operators, datasets/fits/kernels.json, from the shared tables and the project's recordings.

    python benchmarks/durations/fit_kernels.py ../shared                  # three minutes; convolutions stay as they are
    python benchmarks/durations/fit_kernels.py ../shared --convolutions   # fit them too

FP32 is fitted to the tables without `_test` in their names, which are scored, and to those of an MI100, which has no
others. Operators inside frameworks are fitted for each framework and backend with 40 or more measurements.

Left out are products that other fits predict better: of Vidur's A100 (steps of Megatron-LM, left out of the fit, are
off by 5.5 % with TensorRT-LLM's products and by 6.6 % with these), and of the recordings in BF16, which are few. Both
were chosen in view.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from accuracy_of_relatives import recordings

from profilers.files import dataset_path
from replay.costs.kernels import (
    KernelCalibration,
    MeasuredOperators,
    calibrate,
    load_calibration,
    read_measurements,
    write_calibration,
)

#: Fits that are not shipped.
LEFT_OUT = (("matrix_matmul", "A100-SXM4-80GB", "fp16", ""),)
#: Fewest operators of a library that are fitted.
LEAST_ROWS = 40
LIBRARIES = ("trtllm", "vllm", "sglang")
PROFILES = ("a100_llama-2-70b-hf", "a100_meta-llama-3-8b", "a40_llama-2-7b-hf")


def measured(shared: Path, *, convolutions: bool) -> Iterator[MeasuredOperators]:
    """Yield the operators that are fitted."""
    kernels = shared / "data" / "kernels"
    for name in ("linear", "bmm", "elem", "softmax", "ln"):
        for maker in ("nvidia", "amd_mi100"):
            yield from read_measurements(kernels / f"{maker}_{name}.parquet")
    for name in PROFILES:
        yield from read_measurements(kernels / f"vidur_{name}.parquet")
    for folder, end in ((shared / "data", ""), (shared / "new", "_rtx_pro_6000")):
        for path in sorted((folder / "operators").glob(f"aic_*{end}.parquet")):
            several = read_measurements(path)
            known = [one for one in several if one.library.partition("_")[0] in LIBRARIES]
            yield from (one for one in known if len(one) >= LEAST_ROWS)
    for several in recordings().values():
        yield from (one for one in several if one.dtype == "fp32" or "matmul" not in one.kind)
    if convolutions:
        for path in sorted((shared / "data" / "convolutions").iterdir()):
            if path.suffix in (".parquet", ".csv"):
                yield from (one for one in read_measurements(path) if one.kind == "convolution")


if __name__ == "__main__":
    folder, also = Path(sys.argv[1]), "--convolutions" in sys.argv
    base = load_calibration()
    kept = KernelCalibration({}, {}, base.digests) if also else replace(
        base,
        fits={key: fit for key, fit in base.fits.items() if key[0] == "convolution"},
        carried={key: spread for key, spread in base.carried.items() if key[0] == "convolution"},
    )  # fmt: skip
    found = calibrate(measured(folder, convolutions=also), kept)
    fits = {key: fit for key, fit in found.fits.items() if key not in LEFT_OUT}
    write_calibration(dataset_path("fits/kernels.json"), replace(found, fits=fits))
