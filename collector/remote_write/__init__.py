"""Samples onward by Prometheus' remote_write, beside the portal."""
