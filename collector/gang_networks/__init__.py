"""The private networks of gangs on this appliance."""
