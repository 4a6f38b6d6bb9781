"""The agents' door: ingest gateway and desired state on Starlette."""
