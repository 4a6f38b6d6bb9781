"""What pages and resources say: figures, states and sizes as people read them."""
