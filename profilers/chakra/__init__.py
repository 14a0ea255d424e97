"""Chakra and PyTorch execution traces: what ran and what it depended on, for ``chakra.ChakraReader``."""

from profilers.chakra.join import join_execution_trace
from profilers.chakra.reader import ChakraReader

__all__ = ["ChakraReader", "join_execution_trace"]
