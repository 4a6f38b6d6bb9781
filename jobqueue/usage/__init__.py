"""GPU time by tenant, user, job and GPU model, and how well jobs used it."""
