"""Reports on a run and its answers as one HTML page, and comparison of runs."""
