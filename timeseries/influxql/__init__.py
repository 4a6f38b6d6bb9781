"""InfluxQL for reading, over the samples of any store."""
