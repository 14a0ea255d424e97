"""Time `seqpoint ingest` beside what else reads Kineto files, in one run: wall, CPU, peak memory, as ratios.

    python benchmarks/ingest/speed.py FILE... --peers /path/to/venv/bin/python

The peers run in an environment of their own, with HolisticTraceAnalysis, orjson, pandas and msgspec installed.
Each is a whole process, start-up included, as a user runs it: this toolkit writes a linked trace to disk;
Holistic Trace Analysis parses, links and holds the frame that its analyses start from; the two libraries turn
the events into a frame or Arrow table and do nothing else. The order is shuffled, the best of the rounds counts.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_PEERS = {
    "HTA": """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
assert len(analysis.t.get_trace(0))
""",
    "orjson+pandas": """
import gzip, sys, orjson, pandas
raw = (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rb").read()
frame = pandas.json_normalize(orjson.loads(raw)["traceEvents"], max_level=0)
assert len(frame)
""",
    "msgspec": """
import gzip, sys, msgspec, pandas
class Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: msgspec.Raw = msgspec.Raw()
class File(msgspec.Struct):
    traceEvents: list[Event]
raw = (gzip.open if sys.argv[1].endswith(".gz") else open)(sys.argv[1], "rb").read()
events = msgspec.json.decode(raw, type=File).traceEvents
frame = pandas.DataFrame({k: [getattr(e, k) for e in events] for k in ("ph", "cat", "name", "ts", "dur", "pid", "tid")})
frame["args"] = [bytes(e.args) for e in events]
assert len(frame)
""",
}


@dataclass(frozen=True)
class Run:
    """What one process took: seconds of wall clock and CPU, and MB at its peak."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(command: list[str], timeout_s: float) -> Run | None:
    """Return what `command` takes; None where it fails or takes longer than `timeout_s`."""
    script = (
        "import json,resource,subprocess,sys,time\n"
        "began=time.perf_counter()\n"
        "code=subprocess.run(sys.argv[2:],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL,"
        "timeout=float(sys.argv[1])).returncode\n"
        "used=resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([code,time.perf_counter()-began,used.ru_utime+used.ru_stime,used.ru_maxrss/1024]))"
    )
    found = subprocess.run([sys.executable, "-c", script, str(timeout_s), *command], capture_output=True, text=True)
    if found.returncode:
        return None
    code, wall, cpu, peak = json.loads(found.stdout)
    return None if code else Run(wall, cpu, peak)


def best(runs: list[Run | None]) -> Run | None:
    """Return the run of the least wall clock."""
    done = [run for run in runs if run is not None]
    return min(done, key=lambda run: run.wall_s) if done else None


def main() -> None:
    """Print a table, and one JSON object a line with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peers", metavar="PYTHON", help="Interpreter of the environment that holds the peers.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seqpoint = str(Path(sys.executable).with_name("seqpoint"))
    with tempfile.TemporaryDirectory(dir=given.files[0].parent) as folder:
        subprocess.run([seqpoint, "ingest", str(given.files[0]), "-o", f"{folder}/warm.trace"], capture_output=True)
        for file in given.files:
            target = f"{folder}/t.trace"
            commands = {"seqpoint": [seqpoint, "ingest", str(file), "-o", target]}
            if given.peers:
                commands |= {name: [given.peers, "-c", code, str(file)] for name, code in _PEERS.items()}
            runs: dict[str, list[Run | None]] = {name: [] for name in commands}
            for number in range(given.rounds):
                for name in random.Random(number).sample(list(commands), len(commands)):
                    if name == "seqpoint" or number == 0 or None not in runs[name]:
                        shutil.rmtree(target, ignore_errors=True)
                        runs[name].append(measure(commands[name], given.timeout))
            report(file, {name: best(found) for name, found in runs.items()}, given.json)


def report(file: Path, found: dict[str, Run | None], as_json: bool) -> None:
    """Print what each took on one file."""
    size = file.stat().st_size / 1e6
    ours = found["seqpoint"]
    if not as_json:
        print(f"{file.name}, {size:,.0f} MB on disk")
        print(f"  {'':15s}{'wall s':>8s}{'CPU s':>8s}{'MB/CPU s':>9s}{'peak MB':>9s}{'wall / ours':>13s}")
    for name, run in found.items():
        if as_json:
            print(json.dumps({"file": file.name, "mb": size, "reader": name, **(run.__dict__ if run else {})}))
        elif run is None or ours is None:
            print(f"  {name:15s}  failed, or longer than the limit")
        else:
            numbers = f"{run.wall_s:8.2f}{run.cpu_s:8.2f}{size / run.cpu_s:9.0f}{run.peak_mb:9.0f}"
            print(f"  {name:15s}{numbers}{run.wall_s / ours.wall_s:13.1f}")


if __name__ == "__main__":
    main()
