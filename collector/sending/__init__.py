"""What goes over the line: access points, TLS, the write call, the link to the portal."""
