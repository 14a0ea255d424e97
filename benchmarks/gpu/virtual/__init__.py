"""A virtual GPU: a simulator of workgroups, recorded like a GPU, so that what is done with recordings can be tried.

It is an instrument of tests. What it gives is made up and is nowhere called a measurement: it says whether the path
from the harness to a calibrated contention model works, and how far a model of rates can follow a device whose
mechanisms it does not share. It says nothing of any device that exists.

How it differs from the engine in `replay`:

================  =====================================================  ============================================
what              the engine                                             the virtual GPU
================  =====================================================  ============================================
unit of progress  a kernel, at a rate                                    a phase of a workgroup, by events
bandwidth         max-min fair shares                                    servers that take requests in turn: shares go
                                                                         by what is under way, latency grows by waiting
compute units     a share of the device                                  threads, registers and shared memory of each SM
dispatch          in order of priority and arrival, by share             the same order, one workgroup at a time, onto
                                                                         SMs that have room
cache             a demand that grows with footprints                    chunks that are held and evicted, dirty ones
                                                                         to memory
memory            a capacity                                             banks that lose time between streams, and a bus
                                                                         that turns around
clock             a power budget                                         a controller that looks every 20 us
================  =====================================================  ============================================

`device` says what is assumed of a device, `program` what a workgroup does, `board` holds the state, `memory`,
`workgroups`, `events` and `simulate` move it on, and `machine` makes a `Machine` of it, which the plan runs on as on
any other. ::

    python -m benchmarks.gpu --device "Virtual GPU" --output DIR

What is left out: caches of an SM, warps, the placement of SMs in clusters, address translation, ECC, the launch of
kernels by a host that falls behind, preemption of any kind, and all that several devices do.
"""
