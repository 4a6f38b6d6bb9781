"""The embedded store: one DuckDB file, written by one thread, with roll-ups."""
