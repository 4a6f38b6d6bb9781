"""Sealing: samples move from tables into files, and leave after their retention."""
