"""Replay: a kernel graph, the contention engine and the what-ifs over both.

In the order of reading: `graph` has the tasks and edges, `from_trace` builds them from a trace, `engine` shares the
devices and times the tasks. `analysis` explains a timeline, `what_ifs` changes a graph, `projection` says what the
changes gain. `costs` predicts durations and demands, `contention` fits the sharing to recordings, `calibration` holds
what is fitted. `workloads` are jobs without a trace, `studies` the published systems, `writers` the exports.
"""
