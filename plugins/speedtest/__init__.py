"""Speed of the connection to the access point."""
