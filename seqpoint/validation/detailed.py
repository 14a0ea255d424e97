"""Compare the detailed simulation of kernels with counters measured in PATH.

PATH holds PTX files and kernels.json with launches and measured cycles, and beside it the counters of the same kernels
(hardware_counters/accelsim_hw_perf_volta.csv). Each kernel is executed and timed on the device that was measured, a
Quadro GV100 at 1132 MHz. Kernels with instructions that are not supported are left out and named.

\b
seqpoint validate detailed ../shared/data
seqpoint validate detailed kernels/ptx --gate --json
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from profilers.devices import find_device
from profilers.errors import SeqPointError
from replay.calibration.tables import refuse_row
from replay.detailed.timing.launches import LaunchTiming, TimedDevice
from replay.detailed.timing.simulation import simulate_plan
from seqpoint.notebook import table_of
from seqpoint.validation.detailed_inputs import MeasuredKernel, read_kernels
from seqpoint.validation.rows import ValidationRow, summary_row
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, followed

#: Device that was measured: the chip of a V100 with other clocks (Accel-Sim, configuration SM7_QV100).
_DEVICE, _CLOCK_MHZ, _MEMORY_GBPS = "V100-SXM2-32GB", 1132.0, 870.4
#: Limits: mean error of cycles, rank correlation, difference of hit rates, median error of DRAM reads.
_CYCLES, _RANKS, _HITS, _READS = 0.30, 0.95, 0.10, 0.10


@dataclass(frozen=True)
class KernelScore:
    """A kernel, and what the simulation says of it.

    Parameters
    ----------
    kernel : MeasuredKernel
        Kernel.
    timing : LaunchTiming
        Simulated.
    """

    kernel: MeasuredKernel
    timing: LaunchTiming

    @property
    def measured(self) -> float:
        """Measured cycles."""
        return self.kernel.facts.measured_cycles

    def counted(self, column: str) -> float | None:
        """Return a measured counter; None if it was not measured."""
        text = self.kernel.counters.get(column, "")
        return float(text) if text else None

    @property
    def scale(self) -> float:
        """All blocks over the timed ones."""
        return self.timing.blocks / self.timing.timed_blocks

    @property
    def dram_read_bytes(self) -> float:
        """Bytes that all blocks read from DRAM, as those of the timed ones."""
        return 32 * self.timing.counters["dram_read_sectors"] * self.scale

    def rows(self) -> list[ValidationRow]:
        """Return its rows: cycles, hit rate of L2, and bytes read from DRAM."""
        name, timing = self.kernel.name, self.timing
        error = abs(timing.cycles / self.measured - 1)
        low, high = (timing.cycles * (1 + side * timing.cycles_error) for side in (-1, 1))
        rows = [ValidationRow(f"{name}: cycles", self.measured, timing.cycles, error, low=low, high=high)]
        hits, reads = self.counted("l2_read_hit_rate"), self.counted("dram_read_bytes")
        if hits is not None:
            rate = timing.l2_read_hit_rate
            rows.append(ValidationRow(f"{name}: hit rate of L2", hits, rate, abs(rate - hits)))
        if reads:
            ours = self.dram_read_bytes
            rows.append(ValidationRow(f"{name}: bytes read from DRAM", reads, ours, abs(ours / reads - 1)))
        return rows


def target() -> TimedDevice:
    """Return the device that was measured."""
    return TimedDevice.of(find_device(_DEVICE), clock_mhz=_CLOCK_MHZ, memory_gbps=_MEMORY_GBPS)


def _score(kernels: Sequence[MeasuredKernel], options: SuiteOptions) -> SuiteResult:
    device, scores, notes = target(), [], []
    for kernel in followed(kernels, options.progress("simulating"), lambda kernel: kernel.name):
        if not kernel.facts.measured_cycles:
            continue
        try:
            registers = kernel.facts.registers_per_thread_ptxas_12_9_sm70 or None
            (timing,) = simulate_plan(kernel.plan(), device, registers=registers, execute_all=False).timings
        except SeqPointError as problem:
            notes.append(f"{kernel.name} is left out: {problem}")
            refuse_row(kernel.folder / "kernels.json", kernel.name, problem)
            continue
        scores.append(KernelScore(kernel, timing))
    rows = [row for score in scores for row in score.rows()]
    if scores:
        rows += _summaries(scores)
    columns = {
        "kernel~": "{s.kernel.name}", "measured": "{s.measured:.0f}", "simulated": "{s.timing.cycles}",
        "ratio": "{ratio:.2f}", "timed blocks": "{s.timing.timed_blocks} of {s.timing.blocks}",
        "L2 hits %": "{s.timing.l2_read_hit_rate:.1%}",
    }  # fmt: skip
    lines = [{"s": score, "ratio": score.timing.cycles / score.measured} for score in scores]
    return SuiteResult(rows, {}, [table_of("Cycles", columns, lines)], scores, notes)


def _summaries(scores: Sequence[KernelScore]) -> list[ValidationRow]:
    cycles = np.array([score.timing.cycles for score in scores], dtype=np.float64)
    measured = np.array([score.measured for score in scores])
    errors = np.abs(cycles / measured - 1)
    count = len(scores)
    rows = [summary_row(f"cycles: mean error of {count} kernels", float(errors.mean()), _CYCLES)]
    if count > 2 and np.ptp(cycles) and np.ptp(measured):
        rank = float(spearmanr(cycles, measured).statistic)
        rows.append(summary_row("cycles: rank correlation", rank, _RANKS, least=True))
    rates = [(s.timing.l2_read_hit_rate, s.counted("l2_read_hit_rate")) for s in scores]
    hits = [abs(ours - rate) for ours, rate in rates if rate is not None]
    reads = [abs(s.dram_read_bytes / read - 1) for s in scores if (read := s.counted("dram_read_bytes"))]
    if hits:
        rows.append(summary_row(f"hit rate of L2: median difference of {len(hits)}", float(np.median(hits)), _HITS))
    if reads:
        rows.append(summary_row(f"bytes read from DRAM: median error of {len(reads)}", float(np.median(reads)), _READS))
    return rows


SUITE = Suite(
    name="detailed",
    description=__doc__,
    needs="measured kernels with their PTX (kernels.json)",
    source=lambda file: file if file.name == "kernels.json" else None,
    read=lambda sources, options: [kernel for source in sources for kernel in read_kernels(source)],
    score=_score,
)
