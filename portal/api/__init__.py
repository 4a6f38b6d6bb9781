"""The REST API under `/api/v1`, described by OpenAPI at `/api/v1/openapi.json`."""
