"""Moving history between stores, and out of them into files."""
