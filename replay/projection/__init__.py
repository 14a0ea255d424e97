"""Speed-ups of what-ifs, with intervals and provenance."""
