"""The audit log's inner workings; `tenants.audit` is what other packages use."""
