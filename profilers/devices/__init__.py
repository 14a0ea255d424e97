"""The device catalogue: figures of GPUs with their sources, found by name."""

from profilers.devices.catalogue import Device, RatedFigure, find_device, load_devices

__all__ = ["Device", "RatedFigure", "find_device", "load_devices"]
