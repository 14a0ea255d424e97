"""What every reader makes and everything else works on: a `Trace`, its tables and its files."""
