"""Whatever a page does, a program can do by the API."""

from flask import Flask

from portal.api.registry import RESOURCES
from tests.unit.portal.routes import visits

# A page's POST, and the operations by which a program does the same.
SAME: dict[str, set[str]] = {
    "appliance_bulk.bulk": {"Appliances.drain", "Appliances.undrain", "Appliances.change"},
    "appliance_bulk.release": {"Fleet outage.release"},
    "appliances.drain": {"Appliances.drain"},
    "appliances.edit": {"Appliances.change"},
    "appliances.reinstate": {"Appliances.reinstate"},
    "appliances.retire": {"Appliances.retire"},
    "appliances.revoke": {"Appliances.revoke"},
    "appliances.undrain": {"Appliances.undrain"},
    "certificates.revoke": {"Certificates.revoke"},
    "certificates.unfence": {"Appliances.unfence"},
    "console.discard": {"Platform.discard_file"},
    "enrolment.add": {"Enrolment tokens.create_enrolment"},
    "enrolment.again": {"Appliances.enrol_again"},
    "enrolment.revoke": {"Enrolment tokens.revoke"},
    "housekeeping.clean_jobs": {"Platform.clean_jobs"},
    "housekeeping.discard_message": {"Platform.discard_message"},
    "housekeeping.discard_messages": {"Platform.messages", "Platform.discard_message"},
    "housekeeping.retry_message": {"Platform.retry_message"},
    "housekeeping.retry_messages": {"Platform.messages", "Platform.retry_message"},
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
    "tenants.index": {"Tenants.add"},
    "tenants.quotas": {"Tenants.set_quotas"},
    "tenants.removal": {"Platform.remove"},
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


def test_every_list_of_a_page_has_an_operation(app: Flask) -> None:
    lists = {"alerts", "appliances", "audit", "jobs", "receivers", "rules", "tenants", "users"}
    routes = {str(route) for route, _ in visits(app)}
    assert {f"/api/v1/{name}" for name in lists} <= routes
