"""Recordings of ROCm's tools: rocprof 1, rocprofv3 (CSV, JSON, rocpd databases) and RPD."""
