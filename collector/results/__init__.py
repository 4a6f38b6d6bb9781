"""The results of attempts: output folders and their uploads."""
