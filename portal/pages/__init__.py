"""The web pages: each module is one part of the navigation."""
