"""Graphs and timelines as files of other tools."""
