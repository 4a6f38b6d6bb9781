"""Samples that agents and other collectors send."""
