"""`VirtualDevice`: what is assumed of a GPU that does not exist, and three of them."""

from dataclasses import dataclass

__all__ = ["DEVICES", "VirtualDevice"]


@dataclass(frozen=True)
class VirtualDevice:
    """What the simulator knows of a device.

    Sizes are those of published devices of the same class (`datasets/devices.toml`). What no data sheet says was chosen
    so that a kernel alone behaves as the literature describes it; these fields say "chosen". None was measured.

    Parameters
    ----------
    name : str
    sms : int
        Compute units.
    clock_ghz : float
        While the device draws little.
    tensor_per_clock, simd_per_clock : int
        FLOP of one SM in a clock: of its tensor units (bf16), and of its other arithmetic (fp32).
    l2_bytes : int
    l2_gbps, hbm_gbps, link_gbps : float
        Bandwidth of the cache, of the memory, and of the link to the host, each way.
    hbm_bytes : int
    copy_engines : int
    registers, shared_bytes, threads, slots : int
        What the workgroups on one SM share; the registers are of 4 bytes.
    port_per_clock : int
        Bytes that one SM takes from the cache, and that it gives to it, in a clock.
    under_way_bytes : int
        That one SM has requested from the memory at one time, but for tiles that come into shared memory. Chosen: that
        and the latency let one SM draw about 80 GB/s.
    multicast : int
        SMs to which the cache gives a tile at once, chosen: what clusters of workgroups do since Hopper.
    issue_per_clock : int
        Instructions of a warp that one SM starts in a clock.
    l2_ns, hbm_ns, link_ns : float
        Latency of a read without load, chosen. That of the memory grows as it is used (`latency_growth`, chosen).
    hbm_efficiency : float
        Of the bandwidth, for one stream of reads; chosen, as are the two that follow.
    row_conflict, turnaround : float
        How much longer an access takes for each further stream among the last 16, and where half of these wrote.
    launch_ns, gap_ns, skew_ns, dispatch_ns : float
        From a stream's release to its first workgroup, between two launches of a stream, between the releases of two
        streams, and between two workgroups that are dispatched. Chosen.
    engine_gbps : float
        Of one copy engine within the device. Chosen.
    power_tensor, power_hbm, power_free, clock_slope, clock_least : float
        The clock falls by `clock_slope` times what ``power_tensor * tensor use + power_hbm * memory use`` exceeds
        `power_free` by, to `clock_least` at least. Chosen.
    """

    name: str
    sms: int
    clock_ghz: float
    tensor_per_clock: int
    simd_per_clock: int
    l2_bytes: int
    l2_gbps: float
    hbm_gbps: float
    hbm_bytes: int
    link_gbps: float
    copy_engines: int = 3
    registers: int = 65536
    shared_bytes: int = 228 * 1024
    threads: int = 2048
    slots: int = 32
    port_per_clock: int = 64
    issue_per_clock: int = 4
    under_way_bytes: int = 64 * 1024
    multicast: int = 1
    l2_ns: float = 260.0
    hbm_ns: float = 620.0
    link_ns: float = 1300.0
    latency_growth: float = 0.5
    hbm_efficiency: float = 0.94
    row_conflict: float = 0.012
    turnaround: float = 0.05
    launch_ns: float = 2500.0
    gap_ns: float = 1000.0
    skew_ns: float = 1500.0
    dispatch_ns: float = 2.0
    engine_gbps: float = 900.0
    power_tensor: float = 0.9
    power_hbm: float = 0.4
    power_free: float = 0.6
    clock_slope: float = 0.2
    clock_least: float = 0.85

    @property
    def tensor_flops(self) -> float:
        """Of all SMs at full clock, in a second."""
        return self.sms * self.clock_ghz * 1e9 * self.tensor_per_clock

    @property
    def simd_flops(self) -> float:
        """Of all SMs at full clock, in a second."""
        return self.sms * self.clock_ghz * 1e9 * self.simd_per_clock


_MB, _GB = 2**20, 10**9
#: By name. The second is of the class of an A100, the third of that of a B200.
DEVICES = {
    device.name: device
    for device in (
        VirtualDevice("Virtual GPU", 128, 1.7, 4096, 256, 50 * _MB, 10000.0, 4000.0, 96 * _GB, 55.0, multicast=2),
        VirtualDevice(
            "Virtual GPU S", 108, 1.41, 2048, 128, 40 * _MB, 5500.0, 1900.0, 40 * _GB, 25.0, 3,
            hbm_ns=560.0, l2_ns=220.0,
        ),
        VirtualDevice(
            "Virtual GPU L", 148, 1.85, 8192, 256, 126 * _MB, 14000.0, 7600.0, 192 * _GB, 56.0, 4, hbm_ns=720.0,
            l2_ns=310.0, row_conflict=0.008, gap_ns=900.0, clock_slope=0.25, clock_least=0.8, multicast=2,
            port_per_clock=128,
        ),
    )
}  # fmt: skip
