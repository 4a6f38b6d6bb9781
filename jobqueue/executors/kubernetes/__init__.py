"""Attempts as jobs of Kubernetes: the executor of a connector."""
