"""Backups of a portal, and their restore."""
