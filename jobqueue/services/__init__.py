"""Jobs that serve: instances, rolling updates and web pages."""
