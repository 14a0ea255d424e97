"""Recordings of ROCm's tools: rocprof 1, rocprofv3 (CSV, JSON, rocpd databases) and RPD.

Read `records` first, the tables of records that all these readers convert; then any reader, one a module.
"""
