"""Read plugins: one folder for each kind of vital sign."""
