"""The types, plain-text commands and values of collectd, shared by exec and collectd_python."""
