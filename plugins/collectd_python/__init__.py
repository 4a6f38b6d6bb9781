"""Readings of modules that were written for collectd's python plugin, unchanged."""

from plugins.collectd_python.reader import CollectdPythonPlugin

__all__ = ["CollectdPythonPlugin"]
