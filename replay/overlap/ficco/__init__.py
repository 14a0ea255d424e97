"""Products that start on fine pieces of what they need (FiCCO), arXiv 2512.10236."""
