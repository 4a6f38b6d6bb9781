"""Scrapes programs that expose metrics for Prometheus."""
