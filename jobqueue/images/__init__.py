"""Container images in the private registry: who may pull and push them, and what there is."""
