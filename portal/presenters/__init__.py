"""View models and formatting shared by pages and the REST API."""
