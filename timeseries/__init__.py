"""Samples: line protocol, the store interface and its backends."""
