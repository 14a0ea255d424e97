"""The device catalogue: figures of GPUs with their sources, found by name."""
