"""Use of AMD GPUs by owner."""
