"""Forwarding of lines to what a site has: OTLP, Loki, Elasticsearch, syslog."""
