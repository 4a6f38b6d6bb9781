"""Rules and alerts in the formats of Prometheus and Alertmanager."""
