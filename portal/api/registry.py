"""Puts all resources under `/api/v1` and describes them by OpenAPI."""

from flask import Flask

from portal.api.alerts import alerts
from portal.api.appliance_bulk import appliance_bulk
from portal.api.appliances import appliances
from portal.api.audit import audit
from portal.api.blueprint import VedetteAPI
from portal.api.certificates import certificates
from portal.api.enrolment import enrolment_tokens
from portal.api.housekeeping import housekeeping
from portal.api.invitations import invitations
from portal.api.jobs import jobs
from portal.api.metrics import metrics
from portal.api.outage import outage
from portal.api.platform import platform
from portal.api.receivers import notifications, receivers
from portal.api.removals import removals
from portal.api.rules import rules
from portal.api.samples import samples
from portal.api.second_factor import second_factor
from portal.api.sessions import sessions
from portal.api.tenants import tenants
from portal.api.tokens import me, tokens
from portal.api.users import users

RESOURCES = (
    me, second_factor, tokens, sessions, tenants, users, invitations, appliances, appliance_bulk,
    enrolment_tokens,    certificates, jobs, rules, alerts, receivers,
    notifications, metrics, samples, outage, audit, platform,
    removals, housekeeping,
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
    "address and a password (HTTP Basic) for one, with the code of a second factor in the header "
    "`X-Vedette-OTP`. Lists are paged; errors all have one shape."
)
