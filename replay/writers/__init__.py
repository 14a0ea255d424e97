"""Graphs and timelines as files of other tools: Chakra and Perfetto."""
