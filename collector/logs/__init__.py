"""Logs of the host: journal and kernel, buffered on disk and sent to the portal."""
