"""Code that readers of several formats share: the reader protocol, streams, numbers, CSV, JSON and SQLite."""
