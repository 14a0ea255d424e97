"""Recordings of AMD's tools: rocprof 1, rocprofv3 (CSV, JSON, rocpd) and RPD."""
