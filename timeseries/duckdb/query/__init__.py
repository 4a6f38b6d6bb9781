"""Queries of samples, hot and sealed."""
