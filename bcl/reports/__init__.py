"""Reports and comparisons of runs: collected from files, then drawn."""
