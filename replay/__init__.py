"""Replay: a kernel graph, the contention engine and the what-ifs over both.

    Trace --from_trace--> KernelGraph --what_ifs--> KernelGraph --engine--> Timeline --analysis, projection--> answers
    TrainingJob --workloads--^

The heart, in the order of reading: `graph` has tasks and edges. `from_trace` builds them from a trace, `workloads`
from a job that nobody ran. `engine` shares the devices and times the tasks. `what_ifs` changes a graph, `analysis`
explains a timeline, `projection` says what the changes gain, `writers` draws and exports timelines. `costs` predicts
durations and demands, `calibration` holds what is fitted, `contention` fits the sharing to recordings.

The annexes plug in, and the heart imports none: `memory` simulates caches, DRAM and processing in memory, `detailed`
executes kernels in PTX, `gemms` chooses variants of GEMMs, `formats` quantises arrays. `plug_ins` has the what-ifs that
rest on them, and `studies` the set-ups of published systems. The contracts in pyproject.toml say the same.
"""
