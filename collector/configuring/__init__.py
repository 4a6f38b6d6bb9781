"""What of the agent's configuration has rules of its own: TLS files, an InfluxDB as destination."""
