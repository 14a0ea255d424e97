"""Damage files of every format in 20,000 ways; the short run is tests/test_fuzz.py.

    python benchmarks/ingest/fuzz.py 20000 [../shared/data/traces/kineto]

Half of the files are Kineto's, and compared with what the standard library reads. The others are of all other formats,
plain and packed: each is a trace or one line.
"""

import gzip
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from fuzzing import damage, disagreement, read, read_plainly
from test_fuzz import SEEDS, content, kineto_files, read_damaged


def seeds(folder: Path | None) -> list[bytes]:
    """Return the seeds of the tests, and a dozen events of every real file of at most 2 MB."""
    found = kineto_files()
    for path in sorted(folder.rglob("*.json.gz")) if folder else []:
        if path.stat().st_size > 2 << 20 or "particle" in str(path):
            continue
        document = json.loads(gzip.decompress(path.read_bytes()), strict=False)
        document = document if isinstance(document, dict) else {"traceEvents": document}
        events = document["traceEvents"]
        document["traceEvents"] = random.Random(1).sample(events, min(12, len(events)))
        found += [json.dumps(document, indent=indent).encode() for indent in (None, 2)]
    return found


def other_files(cases: int) -> int:
    """Read damaged files of the other formats; return how many neither are a trace nor end in one line."""
    wrong, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        formats = [(name, content(name, Path(folder))) for name in SEEDS]
        for seed in range(cases):
            name, whole = formats[seed % len(formats)]
            began = time.perf_counter()
            try:
                read_damaged(Path(folder) / name, whole, seed)
            except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
                wrong += 1
                print(f"{name}, case {seed}: {type(error).__name__}: {error}")
            slowest = max(slowest, time.perf_counter() - began) if seed >= len(formats) else 0.0
    print(f"{cases} cases of {len(formats)} other formats: {wrong} are wrong, slowest {slowest:.3f} s")
    return wrong


def main() -> None:
    """Print how many cases were wrong and how long the slowest took; exit with 1 where any was."""
    cases = int(sys.argv[1]) // 2
    chosen = seeds(Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    wrong, slowest = other_files(cases), 0.0
    for seed in range(cases):
        data = damage(chosen[seed % len(chosen)], seed)
        began = time.perf_counter()
        found = read(data)
        if seed:  # the first compiles
            slowest = max(slowest, time.perf_counter() - began)
        if problem := disagreement(found, read_plainly(data)):
            wrong += 1
            print(f"case {seed}: {problem[:300]}")
    print(f"{cases} cases over {len(chosen)} files of Kineto: {wrong} disagree, slowest {slowest:.3f} s")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
