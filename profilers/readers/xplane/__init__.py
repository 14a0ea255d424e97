"""Profiles of JAX and TensorFlow: the XPlane files of XLA's profiler."""

from profilers.readers.xplane.reader import XPlaneReader

__all__ = ["XPlaneReader"]
