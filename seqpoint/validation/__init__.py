"""Scores of what the toolkit says against what was measured."""
