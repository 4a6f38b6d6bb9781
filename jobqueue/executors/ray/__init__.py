"""Attempts as jobs of Ray: the executor of a connector."""
