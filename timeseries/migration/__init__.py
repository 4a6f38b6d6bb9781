"""Migration of samples between stores, and export to files."""
