"""Hiding communication behind computation: four published systems over one graph and engine."""
