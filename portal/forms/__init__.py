"""HTML forms: they validate user input and convert it to service requests."""
