"""The buffer on disk between plugins and sender."""
