"""A relay: an access point near the appliances, without a database of its own."""
