"""The web portal: REST API and web pages on Flask."""
