"""The cache of datasets on this appliance."""
