"""The people's door: REST API and web pages on Flask."""
