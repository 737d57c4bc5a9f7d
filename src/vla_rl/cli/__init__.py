"""Command line: parsing and wiring, nothing else."""
