"""Contracts: a provider and a customer agree on versions of terms; grants follow from them."""
