"""Execution traces of Chakra and PyTorch: operators with their tensors and dependencies, mostly without times."""

from profilers.readers.chakra.reader import ChakraReader

__all__ = ["ChakraReader"]
