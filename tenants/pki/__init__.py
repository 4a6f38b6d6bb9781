"""The certificate authority and agents' client certificates."""
