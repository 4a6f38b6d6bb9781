"""Read plugins: one package for each kind of metric."""
