"""How the server speaks HTTP: connections, TLS, proxies, and shares of the portal."""
