"""Puts all resources under `/api/v1` and describes them by OpenAPI."""

from flask import Flask

from portal.api.alerts import alerts
from portal.api.appliances import appliances, enrolment_tokens
from portal.api.blueprint import VedetteAPI
from portal.api.jobs import jobs
from portal.api.metrics import metrics
from portal.api.receivers import notifications, receivers
from portal.api.rules import rules
from portal.api.samples import samples
from portal.api.tenants import tenants
from portal.api.tokens import me, tokens
from portal.api.users import users

RESOURCES = (
    me, tokens, tenants, users, appliances, enrolment_tokens, jobs, rules, alerts, receivers,
    notifications, metrics, samples,
)  # fmt: skip


def install_api(app: Flask) -> VedetteAPI:
    """Register every resource with the app."""
    app.config.update(
        API_TITLE="Vedette",
        API_VERSION="v1",
        OPENAPI_VERSION="3.0.3",
        OPENAPI_URL_PREFIX="/api/v1",
        OPENAPI_JSON_PATH="openapi.json",
    )
    api = VedetteAPI(app, spec_kwargs={"info": {"description": _DESCRIPTION}})
    api.spec.components.security_scheme("token", {"type": "http", "scheme": "bearer"})
    api.spec.components.security_scheme("password", {"type": "http", "scheme": "basic"})
    api.spec.options["security"] = [{"token": []}]
    for blueprint in RESOURCES:
        api.register_blueprint(blueprint)
    return api


_DESCRIPTION = (
    "Send an API token as `Authorization: Bearer vdt_...`; `POST /api/v1/tokens` trades an email "
    "address and a password (HTTP Basic) for one. Lists are paged; errors all have one shape."
)
