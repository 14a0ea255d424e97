"""Chakra and PyTorch execution traces: what ran and what it depended on, for ``chakra.ChakraReader``."""

from profilers.readers.chakra.reader import ChakraReader

__all__ = ["ChakraReader"]
