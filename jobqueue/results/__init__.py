"""Results of jobs: files of their output folders."""
