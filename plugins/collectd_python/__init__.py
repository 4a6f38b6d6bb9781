"""Runs unchanged modules for collectd's python plugin."""
