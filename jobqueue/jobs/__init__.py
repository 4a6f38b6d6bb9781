"""Jobs: requests, states and what is stored beside them."""
