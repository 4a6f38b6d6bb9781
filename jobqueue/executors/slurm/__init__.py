"""Attempts as jobs of Slurm: the executor of a connector."""
