"""Whatever a page does, a program can do by the API."""

from flask import Flask

from portal.api.registry import RESOURCES
from tests.unit.portal.routes import visits

# A page's POST, and the operations by which a program does the same.
SAME: dict[str, set[str]] = {
    "appliance_bulk.bulk": {"Appliances in bulk.change"},
    "appliance_bulk.release": {"Fleet outage.release"},
    "appliances.drain": {"Appliances.drain"},
    "appliances.edit": {"Appliances.change"},
    "appliances.reinstate": {"Appliances.reinstate"},
    "appliances.retire": {"Appliances.retire"},
    "appliances.revoke": {"Appliances.revoke"},
    "appliances.undrain": {"Appliances.undrain"},
    "certificates.revoke": {"Certificates.revoke"},
    "certificates.unfence": {"Appliances.unfence"},
    "certificates.readmit": {"Appliances.readmit"},
    "console.discard": {"Removals.discard"},
    "enrolment.add": {"Enrolment tokens.create_enrolment"},
    "enrolment.again": {"Appliances.enrol_again"},
    "enrolment.revoke": {"Enrolment tokens.revoke"},
    "housekeeping.clean_jobs": {"Housekeeping.clean_jobs"},
    "housekeeping.discard_message": {"Housekeeping.discard_message"},
    "housekeeping.discard_messages": {"Housekeeping.discard_messages"},
    "housekeeping.retry_message": {"Housekeeping.retry_message"},
    "housekeeping.retry_messages": {"Housekeeping.retry_messages"},
    "invitations.resend": {"Invitations.resend"},
    "invitations.revoke": {"Invitations.revoke"},
    "jobs.add": {"Jobs.submit"},
    "jobs.stop": {"Jobs.stop"},
    "receivers.delete": {"Receivers.delete"},
    "receivers.index": {"Receivers.create"},
    "rules.add": {"Rules.create", "Rules.preview"},
    "rules.delete": {"Rules.delete"},
    "rules.edit": {"Rules.replace", "Rules.preview"},
    "rules.switch": {"Rules.enable", "Rules.disable"},
    "second_factor.begin": {"SecondFactor.begin"},
    "second_factor.confirm": {"SecondFactor.confirm"},
    "second_factor.off": {"SecondFactor.off"},
    "second_factor.renew": {"SecondFactor.renew"},
    "second_factor.reset": {"Users.reset_factor"},
    "settings.add_token": {"Tokens.create_token"},
    "settings.change": {"Me.change_own_password"},
    "settings.end_browser": {"Sessions.end"},
    "settings.end_browsers": {"Sessions.end_all"},
    "settings.revoke_token": {"Tokens.revoke_token"},
    "tenants.index": {"Tenants.add", "Invitations.add"},
    "tenants.quotas": {"Tenants.set_quotas"},
    "tenants.removal": {"Removals.add"},
    "tenants.show": {"Invitations.add"},
    "tenants.switch": {"Tenants.suspend", "Tenants.activate", "Tenants.close"},
    "users.change_role": {"Users.change_role"},
    "users.index": {"Invitations.add"},
    "users.remove": {"Users.remove"},
    "users.switch": {"Users.activate", "Users.deactivate"},
}
# What is about the browser itself, or proves who sits before it: no program does that.
OF_BROWSERS = {
    "invitations.accept",
    "invitations.join",
    "password.forgot",
    "password.reset",
    "second_factor.challenge",
    "second_factor.download",
    "session.login",
    "session.logout",
    "session.switch",
    "support.end",
    "support.visit",
}


def test_every_form_of_a_page_has_an_operation(app: Flask) -> None:
    forms = {
        str(route.endpoint)
        for route, method in visits(app)
        if method != "GET" and not str(route).startswith(("/api/", "/dashboards/"))
    }
    assert forms == SAME.keys() | OF_BROWSERS


def test_the_operations_are_there() -> None:
    known = {name for resource in RESOURCES for name in resource.needs}
    assert set().union(*SAME.values()) <= known


# What a page shows, and the operations that tell a program the same.
SHOWN: dict[str, set[str]] = {
    "alerts.index": {"Alerts.list_all"},
    "alerts.show": {"Alerts.show", "Alerts.transitions"},
    "appliances.edit": {"Appliances.show"},
    "appliances.events": {"Appliances.events"},
    "appliances.index": {"Appliances.list_all", "Fleet outage.show"},
    "appliances.show": {"Appliances.show", "Appliances.events", "Jobs.list_all"},
    "audit.export": {"Audit.export"},
    "audit.index": {"Audit.list_all"},
    "certificates.expiring": {"Certificates.list_expiring"},
    "certificates.index": {"Appliances.list_of_appliance"},
    "console.export": {"Removals.export"},
    "console.index": {"Platform.show_figures", "Platform.show_growth"},
    "console.removals": {"Removals.list_all", "Removals.show"},
    "enrolment.index": {"Enrolment tokens.list_all", "Enrolment tokens.show"},
    "housekeeping.index": {
        "Housekeeping.show", "Housekeeping.messages", "Housekeeping.stuck_jobs",
    },
    "invitations.index": {"Invitations.list_all", "Invitations.show"},
    "jobs.index": {"Jobs.list_all"},
    "jobs.show": {"Jobs.show", "Jobs.events", "Jobs.log", "Jobs.usage"},
    "receivers.index": {"Receivers.list_all", "Notifications.list_sent"},
    "rules.edit": {"Rules.show"},
    "rules.index": {"Rules.list_all"},
    "second_factor.index": {"SecondFactor.show"},
    "settings.index": {"Me.show_me", "Sessions.list_all", "Tokens.list_tokens"},
    "tenants.index": {"Tenants.list_all"},
    "tenants.quotas": {"Tenants.show_quotas", "Tenants.show_usage"},
    "tenants.removal": {"Tenants.show"},
    "tenants.show": {"Tenants.show", "Users.list_all", "Invitations.list_all"},
    "usage.index": {"Tenants.show_usage"},
    "users.index": {"Users.list_all", "Invitations.list_all"},
    "users.show": {"Users.show"},
}  # fmt: skip
# Empty forms, the way in and what a browser draws.
OF_PEOPLE = {
    "enrolment.add", "health.health", "home.index", "invitations.accept", "jobs.add",
    "oidc.callback", "oidc.start", "password.forgot", "password.reset",
    "rules.add", "second_factor.challenge", "second_factor.qr_code", "session.login", "static",
    "support.visit",
}  # fmt: skip


def test_everything_that_a_page_shows_has_an_operation(app: Flask) -> None:
    shown = {
        str(route.endpoint)
        for route, method in visits(app)
        if method == "GET" and not str(route).startswith(("/api/v1/", "/dashboards/"))
    }
    assert shown - {"api-docs.openapi_json"} == SHOWN.keys() | OF_PEOPLE
    known = {name for resource in RESOURCES for name in resource.needs}
    assert set().union(*SHOWN.values()) <= known
