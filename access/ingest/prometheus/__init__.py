"""Samples of Prometheus' remote_write and of OTLP."""
