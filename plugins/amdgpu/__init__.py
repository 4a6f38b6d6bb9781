"""AMD GPUs."""
