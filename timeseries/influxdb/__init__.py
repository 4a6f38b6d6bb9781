"""The store on an InfluxDB of any version, read by InfluxQL."""
