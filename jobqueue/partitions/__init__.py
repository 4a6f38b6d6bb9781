"""How the GPUs of a tenant are shared: its partition policies, and the isolation that it wants."""
