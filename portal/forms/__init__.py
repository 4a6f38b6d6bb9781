"""Forms of the pages: what people type, checked and turned into requests of the services."""
