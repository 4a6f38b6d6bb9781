"""PromQL over the samples of any store; docs/prometheus.md lists what of it there is."""
