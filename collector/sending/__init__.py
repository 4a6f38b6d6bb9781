"""Network connections: access points, TLS, the write call, the link to the portal."""
