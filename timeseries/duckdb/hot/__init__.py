"""Samples that are written: from the queue into tables."""
