"""Sizes of the answers of `seqpoint mcp`: every tool, and every page of every table, on three recorded jobs.

    python -m benchmarks.agent_answers ../shared/data/traces/kineto

The jobs are nanoGPT on 8 ranks, DLRM on 128 ranks (the files of 8, sixteen times), and FLUX on an MI300X. It prints the
largest answer of each tool and its time, and fails if one has more than 8,192 bytes. It takes about five minutes.
"""

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profilers.ingest.pipeline import collect
from profilers.trace.store import save_trace
from profilers.writers.slicing import as_ranks, merge
from replay.what_ifs import what_ifs
from seqpoint.agents import MOST_BYTES, TraceTools

VIEWS = ("kernels", "ops", "launches", "copies", "collectives", "syncs", "ranges", "counters", "iterations")
#: Pages that are read of a table.
PAGES = 6


def jobs(data: Path, root: Path) -> list[str]:
    """Write the three traces into a folder, and return their names."""
    save_trace(collect(sorted((data / "nanogpt8").iterdir())), root / "nanogpt8.trace")
    dlrm = [collect([file]) for file in sorted((data / "dlrm8").iterdir())]
    save_trace(merge(as_ranks(dlrm * 16)), root / "dlrm128.trace")
    save_trace(collect([data / "tracelens" / "other" / "xdit_flux_mi300.json.gz"]), root / "xdit.trace")
    return ["dlrm128.trace", "nanogpt8.trace", "xdit.trace"]


def calls(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls: tool and arguments."""
    yield "describe", {}
    for name in ("", *what_ifs()):
        yield "what_ifs", {"name": name}
    for trace in names:
        yield from (("describe", {"trace": trace, "by": by}) for by in ("", "kernel", "operator", "range", "host"))
        for by in ("", "operator", "shape", "kernel", "class", "phase", "module"):
            yield "characterize", {"trace": trace, "by": by}
        yield from (("sql", {"trace": trace, "query": f"from {view} limit 300"}) for view in VIEWS)
        yield "sql", {"trace": trace}
        yield from (("compare", {"before": before, "after": trace}) for before in (trace, names[0]))
        yield "project", {"trace": trace, "what_ifs": ["overlap:ideal", "scale_device:MI355X", "scale_host:0.5"]}
        yield "advise", {"trace": trace, "minutes": 0.2}


def pages(tools: TraceTools, answer: dict[str, Any]) -> Iterator[str]:
    """Yield pages of all tables of an answer that go on, and pages of narrow and wide texts."""
    handles = [table["more"] for table in answer.get("tables", ()) if "more" in table]
    for handle in [*handles, *answer.get("more_tables", ())]:
        offset: int | None = 0
        for _ in range(PAGES):
            text = tools.more(handle, offset or 0)
            yield text
            offset = json.loads(text)["next_offset"]
            if offset is None:
                break
        yield from (tools.more(handle, 0, width) for width in (4, 1000, 10**6))


def main() -> None:
    """Print the largest answer and the longest time of each tool."""
    sizes, times, counts = defaultdict[str, int](int), defaultdict[str, float](float), defaultdict[str, int](int)
    with tempfile.TemporaryDirectory() as folder:
        names = jobs(Path(sys.argv[1]), Path(folder))
        tools = TraceTools(folder)
        for tool, arguments in calls(names):
            started = time.monotonic()
            text = getattr(tools, tool)(**arguments)
            times[tool] = max(times[tool], time.monotonic() - started)
            for name, each in ((tool, text), *(("more", page) for page in pages(tools, json.loads(text)))):
                sizes[name], counts[name] = max(sizes[name], len(each.encode())), counts[name] + 1
                assert sizes[name] <= MOST_BYTES, (tool, arguments)
    for tool, size in sizes.items():
        print(f"{tool:13} {counts[tool]:5} answers, largest {size:5,} bytes, longest {times[tool]:5.1f} s")


if __name__ == "__main__":
    main()
