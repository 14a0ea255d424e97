"""Traces of jobs that run several steps, made by following the rules of a host and a device one call at a time.

The rules are written here once more, in plain Python and without the engine. A host makes its calls one after
another, and a stream runs its kernels one after another. A launch waits while the launch queue is full, and a
synchronisation waits for the stream. A collective begins when all ranks have come to it. An input pipeline makes one
batch after another.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traces import event, kineto

#: From the start of a launch to the start of its kernel on an idle stream, and how long calls take, us.
LAG, CALL = 4.0, 2.0
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

#: What a host does: ("work", us), ("launch", us of the kernel), ("reduce", us), ("sync",), ("load", us a batch). A copy
#: and a fill, ("copy", us) and ("fill", us), are launched as kernels are. ("poll", us) reads memory until the stream is
#: done, and us more. Launches, copies and fills can name a stream behind their time; each stream has its own queue.
Call = tuple[Any, ...]
STREAM = 7
#: Name of the call, name and category of the device work, by what is launched.
LAUNCHED = {
    "launch": ("cudaLaunchKernel", "ampere_sgemm_128x64_nn", "kernel"),
    "copy": ("cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", "gpu_memcpy"),
    "fill": ("cudaMemsetAsync", "Memset (Device)", "gpu_memset"),
}


@dataclass
class Rank:
    """One rank: its clock, its stream, and what was launched."""

    number: int
    call_us: float = CALL
    now: float = 0.0
    batch: float = 0.0
    works: int = 0
    starts: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    events: list[dict[str, Any]] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)

    @property
    def free(self) -> float:
        """When all streams are done."""
        return max(self.ends.values(), default=0.0)

    def call(self, name: str, category: str, until: float, **args: Any) -> None:
        """Add a call that begins now and ends at a time."""
        self.events.append(event(name, category, self.now, until - self.now, **args))
        self.now = until

    def launch(self, queue: int | None, kind: str = "launch", stream: int = STREAM) -> float:
        """Make a launch, which blocks while the queue is full; return when its work may start."""
        starts, room = self.starts[stream], self.now
        if queue is not None and len(starts) >= queue:
            room = max(room, starts[len(starts) - queue])
        self.works += 1
        self.call(LAUNCHED[kind][0], "cuda_runtime", room + self.call_us, correlation=self.works)
        return max(room + LAG, self.ends[stream])

    def run(self, start: float, us: float, kind: str = "launch", stream: int = STREAM) -> None:
        """Run what was launched on its stream."""
        _, name, category = LAUNCHED[kind]
        about = (
            {"bytes": 4096}
            if kind != "launch"
            else {"grid": [108, 1, 1], "block": [256, 1, 1], "registers per thread": 255, "shared memory": 0}
        )
        self.add(name, category, (start, start, us), stream, **about)

    def add(self, name: str, category: str, times: tuple[float, float, float], stream: int, **about: Any) -> None:
        """Add device work that arrives, starts when all ranks have come, and takes some time then."""
        arrives, start, us = times
        self.starts[stream].append(arrives)
        place = {"correlation": self.works, "device": 0, "stream": stream}
        self.events.append(event(name, category, arrives, start + us - arrives, **place, **about))
        self.ends[stream] = start + us


def write_job(
    folder: Path, ranks: Sequence[Sequence[Call]], steps: int = 6, queue: int | None = None, call_us: float = CALL
) -> tuple[list[Path], list[float]]:
    """Write the trace of a job whose ranks repeat their calls each step.

    Parameters
    ----------
    folder : Path
    ranks : sequence of sequence of calls
        What each rank does in a step, as many calls of the same kinds on each.
    steps : int
    queue : int, optional
        Depth of the launch queue.
    call_us : float
        What a launch takes of the host.

    Returns
    -------
    files : list of Path
    completions : list of float
        When each step is complete on the last of its ranks, us.
    """
    jobs = [Rank(number, call_us) for number in range(len(ranks))]
    for step in range(1, steps + 1):
        begun = [job.now for job in jobs]
        for calls in zip(*ranks, strict=True):
            _make(jobs, calls, queue)
        for job, begin in zip(jobs, begun, strict=True):
            job.events.append(event(f"ProfilerStep#{step}", "user_annotation", begin, job.now - begin))
            job.completions.append(max(job.now, job.free))
    files = []
    for job in jobs:
        files.append(folder / f"rank{job.number}.json")
        about = {"distributedInfo": {"backend": "nccl", "rank": job.number, "world_size": len(jobs)}}
        files[-1].write_text(json.dumps(kineto(job.events, **(about if len(jobs) > 1 else {}))))
    return files, [max(times) for times in zip(*(job.completions for job in jobs), strict=True)]


def _make(jobs: Sequence[Rank], calls: Sequence[Call], queue: int | None) -> None:
    """Make the next call of every rank."""
    kind = calls[0][0]
    if kind == "reduce":
        ready = [job.launch(queue) for job in jobs]
        met = max(ready)
        meta = {"grid": [108, 1, 1], "block": [256, 1, 1],
                "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float",
                "Group size": len(jobs)}  # fmt: skip
        for job, start, call in zip(jobs, ready, calls, strict=True):
            job.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", (start, met, call[1]), STREAM, **meta)
        return
    for job, call in zip(jobs, calls, strict=True):
        if kind == "work":
            job.now += call[1]
        elif kind in LAUNCHED:
            stream = call[2] if len(call) > 2 else STREAM
            job.run(job.launch(queue, kind, stream), call[1], kind, stream)
        elif kind == "poll":
            job.now = max(job.free, job.now) + call[1]
        elif kind == "sync":
            job.call("cudaDeviceSynchronize", "cuda_runtime", max(job.free, job.now) + job.call_us)
        else:
            job.batch += call[1]
            job.call(LOADER, "user_annotation", max(job.now + 0.1, job.batch))
