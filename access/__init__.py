"""The agent API on Starlette: ingest, desired state, enrollment."""
