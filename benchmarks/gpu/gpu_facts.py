"""What a GPU is, and in which state: asked of PyTorch and of the vendor's tools, never set, never guessed."""

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

__all__ = ["facts_of", "state_of"]

TOOL_SECONDS = 10
#: What is asked of nvidia-smi, and how it is called here.
NVIDIA_SMI = {
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
    "utilization.gpu": "utilization_percent",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.width.current": "pcie_width",
    "driver_version": "driver",
}


def facts_of(torch: Any, properties: Any) -> dict[str, Any]:
    """Return a device's properties by our names; null for what this PyTorch does not say."""
    amd = bool(torch.version.hip)
    return {
        "name": properties.name,
        "vendor": "AMD" if amd else "NVIDIA",
        "architecture": properties.gcnArchName if amd else f"sm_{properties.major}{properties.minor}",
        "compute_units": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "copy_engines": getattr(properties, "async_engine_count", None),
        "warp_size": getattr(properties, "warp_size", None),
        "registers_per_unit": getattr(properties, "regs_per_multiprocessor", None),
        "shared_bytes_per_unit": getattr(properties, "shared_memory_per_multiprocessor", None),
        "threads_per_unit": getattr(properties, "max_threads_per_multi_processor", None),
        "memory_bus_bits": getattr(properties, "memory_bus_width", None),
        "integrated": bool(getattr(properties, "is_integrated", False)),
    }


def state_of(torch: Any, properties: Any) -> dict[str, Any]:
    """Return clocks in MHz, temperature in degrees C and power in W, from whoever answers first."""
    if not torch.version.hip and (answered := _nvidia_smi(str(getattr(properties, "uuid", "")))):
        return answered
    asked: dict[str, tuple[Callable[[], float], float]] = {
        "sm_clock_mhz": (torch.cuda.clock_rate, 1.0),
        "temperature_c": (torch.cuda.temperature, 1.0),
        "power_w": (torch.cuda.power_draw, 1e-3),
    }
    return {key: value for key, (ask, scale) in asked.items() if (value := _asked(ask, scale)) is not None}


def _asked(ask: Callable[[], float], scale: float) -> float | None:
    """Return an answer, or nothing where PyTorch has no library to ask (it says so in many ways)."""
    try:
        return round(float(ask()) * scale, 3)
    except Exception:  # noqa: BLE001  ModuleNotFoundError, RuntimeError, errors of NVML and of AMD SMI
        return None


def _nvidia_smi(uuid: str) -> dict[str, Any]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(NVIDIA_SMI)}", "--format=csv,noheader,nounits"]
    command += ["-i", uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"] if uuid else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return read_nvidia_smi(done.stdout)


def read_nvidia_smi(text: str) -> dict[str, Any]:
    """Return the first line of nvidia-smi's answer by our names; what it does not know is left out.

    Examples
    --------
    >>> read_nvidia_smi("1980, 2619, 1980, 41, 118.34, 700.00, 0, 5, 16, 580.65.06")["sm_clock_mhz"]
    1980.0
    """
    fields = [field.strip() for field in text.split("\n", 1)[0].split(",")]
    if len(fields) != len(NVIDIA_SMI):
        return {}
    named = dict(zip(NVIDIA_SMI.values(), fields, strict=True))
    number = re.compile(r"\d+(\.\d+)?")
    state: dict[str, Any] = {key: float(value) for key, value in named.items() if number.fullmatch(value)}
    return state | ({"driver": named["driver"]} if re.fullmatch(r"[\d.]+", named["driver"]) else {})
