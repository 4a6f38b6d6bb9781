"""The store on VictoriaMetrics, read by MetricsQL."""
