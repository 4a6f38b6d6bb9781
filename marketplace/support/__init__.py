"""Support: tickets between tenants, the providers that they rent from, and the operator."""
