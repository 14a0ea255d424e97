"""Read an Nsight Systems export to a `Stage` on disk and say what it cost.

    python benchmarks/ingest/nsys_generator.py /tmp/five_million.sqlite 5000000
    python benchmarks/ingest/nsys_speed.py /tmp/five_million.sqlite [runs]

One line a run: rows (kernels and calls), wall seconds, CPU seconds, million rows a second, and the highest
resident memory of the process so far, Python and its libraries included. Nothing is linked.
"""

import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from profilers.ingest.stage import Stage
from profilers.readers.nsys import NsysReader, NsysTablesReader


def measure(path: Path) -> str:
    """Return one line of figures for reading the export at `path`."""
    folder = Path(tempfile.mkdtemp(prefix="nsys_speed."))
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        stage = Stage(folder)
        reader = NsysTablesReader() if path.is_dir() else NsysReader()
        reader.read([path], stage)
        stage.close()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        written = sum(file.stat().st_size for file in folder.iterdir())
    finally:
        shutil.rmtree(folder)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{stage.rows:,} rows, {wall:.2f} s wall, {cpu:.2f} s CPU, {stage.rows / wall / 1e6:.2f} M rows/s, "
        f"{memory:.0f} MB at most, {written / 1e6:.0f} MB written"
    )


if __name__ == "__main__":
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
        print(measure(Path(sys.argv[1])), flush=True)
