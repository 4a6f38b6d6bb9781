"""One module per tier: the layout of its page, and the data of a refresh."""
