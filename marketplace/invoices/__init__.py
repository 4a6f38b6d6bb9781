"""Invoices of customers, statements of providers, and statements of a tenant's own costs."""
