"""From trace files to a `Trace`: open, read, link, join ranks, cut into iterations, write."""
