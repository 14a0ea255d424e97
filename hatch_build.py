"""Build hook of the wheel: it compiles what most commands call, and the wheel carries the machine code.

A first command would otherwise compile for a minute. The code is of a generic processor, which ran within 2 % of the
time of native code. It belongs to a platform and a version of Python, and so does the wheel. Without numba, or if a job
fails, the wheel has no machine code, and each user's first commands compile.

    python hatch_build.py read     # what the hook starts for each job; NUMBA_CACHE_DIR names the folder
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SAMPLES = ROOT / "datasets" / "samples"
H100_STEP = SAMPLES / "h100" / "language_step.pt.trace.json.gz"
#: Names the jobs to run, separated by commas: all of `JOBS` unless it is set, none if it is empty.
JOBS_VARIABLE = "SEQPOINT_COMPILE"
#: Code without Intel's vector functions, which the user may lack.
PROCESSOR = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_DISABLE_INTEL_SVML": "1"}


def read() -> None:
    """Read traces of PyTorch. The graph of the last one finds how long kernels take that ran side by side."""
    seqpoint, graphs = import_module("seqpoint"), import_module("seqpoint.graphs")
    seqpoint.open(H100_STEP)
    seqpoint.open(SAMPLES / "cpu_epoch" / "epoch_threads1.pt.trace.json.zst")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        for seconds in (1, 6):  # times are numbers of 32 bits in a trace of less than 2.1 s
            Path(file.name).write_text(json.dumps(_two_streams(seconds)))
            graphs.graph_of(seqpoint.open(file.name))


def _two_streams(seconds: int) -> dict[str, Any]:
    """Return a trace of an H100 in which products run side by side on two streams; it lasts some seconds."""

    def event(name: str, category: str, start: float, thread: int, **arguments: Any) -> dict[str, Any]:
        process = 0 if category == "kernel" else 10
        keys = {"ph": "X", "name": name, "cat": category, "ts": start, "dur": 200, "pid": process, "tid": thread}
        return {**keys, "args": arguments}

    events = []
    for step in (0, 1):
        begin = step * seconds * 5e5
        events.append(event(f"ProfilerStep#{step}", "user_annotation", begin, 10) | {"dur": seconds * 5e5})
        for stream in (7, 20):
            call, kernel = 100 * step + stream, {"grid": [264, 1, 1], "block": [256, 1, 1], "device": 0}
            events.append(event("aten::mm", "cpu_op", begin + 10 * stream, stream) | {"dur": seconds * 4e5})
            events.append(event("cudaLaunchKernel", "cuda_runtime", begin + 10 * stream + 5, stream, correlation=call))
            for orphan in (0, 50):  # the launch of the second kernel is not in the trace
                kernel |= {"stream": stream, "correlation": call + orphan}
                start = begin + 300 + stream + 5 * orphan
                events.append(event("sgemm_128x64_nn", "kernel", start, stream, **kernel))
    return {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}], "traceEvents": events}


def read_tables() -> None:
    """Read a table of a SQLite database, as Nsight Systems and ROCm write."""
    pages = import_module("profilers.readers.common.sqlite_pages")
    with tempfile.NamedTemporaryFile() as file:
        connection = sqlite3.connect(file.name)
        connection.execute("CREATE TABLE kernels (id INTEGER PRIMARY KEY, name TEXT, start INTEGER, share REAL)")
        connection.executemany("INSERT INTO kernels VALUES (?, ?, ?, ?)", [(k, "gemm", k, 0.5) for k in range(1000)])
        connection.commit()
        connection.close()
        columns = [pages.Stored(None), *(pages.Stored(position, real=position == 3) for position in (1, 2, 3))]
        list(pages.scan_table(pages.PageFile(file.fileno()), 2, columns))


def answer() -> None:
    """Replay a synthetic job, then answer from a trace of PyTorch, which the job `read` has compiled meanwhile."""
    seqpoint = import_module("seqpoint")
    layout = seqpoint.Layout(tensor=2)
    model = seqpoint.Transformer("gpt", "megatron", 1, 1024, 16, 4096, 8192)
    job = seqpoint.synthesize(seqpoint.TrainingJob(model, 256, 4, 2, layout), "MI300X")
    seqpoint.project(job, ["overlap:ideal", "t3:mca"], draws=1)
    for trace in (job, seqpoint.open(H100_STEP)):
        seqpoint.advise(trace)
        seqpoint.describe(trace)
        seqpoint.characterize(trace)
        seqpoint.replay(trace)
    seqpoint.project(trace, ["scale_device:H200-SXM-141GB"], draws=1)


#: What is compiled: jobs that run side by side, each in a process.
JOBS = {"read": read, "read_tables": read_tables, "answer": answer}


class MachineCodeHook(BuildHookInterface[Any]):
    """Puts machine code into a wheel as ``seqpoint/machine_code``; an editable installation has none."""

    def dependencies(self) -> list[str]:
        """Return what the jobs need beside the hook: all that a user installs, in the versions of today."""
        return list(self.metadata.core.dependencies) if _jobs() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run the jobs twice in an empty folder: the first run compiles, and what the second loads is shipped.

        Functions inlined into others have files, too. The second run loads none of them.
        """
        jobs = _jobs()
        if version == "editable" or not jobs:
            return
        self._folder = tempfile.TemporaryDirectory()
        code = Path(self._folder.name) / "seqpoint" / "compiled"
        self._write_metadata(Path(self._folder.name))
        try:
            _run(jobs, self._folder.name)
            for path in code.iterdir():
                os.utime(path, (0, 0))
            _run(jobs, self._folder.name)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"the wheel has no machine code, each user will compile: {error}")
            return
        loaded = [path for path in code.iterdir() if path.stat().st_mtime]
        made_with = code / "made_with.json"  # `profilers.trace.compiled` names it, for `seqpoint doctor`
        made_with.write_text(json.dumps({name: version_of(name) for name in ("numba", "llvmlite", "numpy")}))
        loaded.append(made_with)
        build_data["force_include"] |= {str(path): f"seqpoint/machine_code/{path.name}" for path in loaded}
        build_data |= {"pure_python": False, "infer_tag": True}

    def _write_metadata(self, folder: Path) -> None:
        """Write what an installation knows of the project: readers are found by their entry points."""
        core = self.metadata.core
        info = folder / f"{core.name}-{self.metadata.version}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {core.name}\nVersion: {self.metadata.version}\n"
        )
        lines = [line for group, points in core.entry_points.items()
                 for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))]  # fmt: skip
        info.joinpath("entry_points.txt").write_text("\n".join(lines) + "\n")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _jobs() -> list[str]:
    """Return the names of the jobs to run."""
    return [name for name in os.environ.get(JOBS_VARIABLE, ",".join(JOBS)).split(",") if name]


def _run(jobs: list[str], folder: str) -> None:
    """Run jobs side by side, with `folder` as that of machine code.

    Raises
    ------
    CalledProcessError
        A job failed.
    """
    # pip names its build environment in PYTHONPATH: the interpreter is that of the user.
    path = os.pathsep.join(filter(None, [str(ROOT), folder, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **PROCESSOR, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": path}
    started = [subprocess.Popen([sys.executable, __file__, job], env=environment) for job in jobs]
    failed = [process.args for process in started if process.wait()]
    if failed:
        raise subprocess.CalledProcessError(1, failed[0])


if __name__ == "__main__":
    JOBS[sys.argv[1]]()
