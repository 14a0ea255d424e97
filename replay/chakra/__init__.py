"""Graphs as Chakra execution traces, which ASTRA-sim runs, and back."""

from replay.chakra.reader import read_chakra
from replay.chakra.writer import ChakraFiles, write_chakra

__all__ = ["ChakraFiles", "read_chakra", "write_chakra"]
