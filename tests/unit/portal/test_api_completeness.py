"""Every page has an equivalent in the REST API."""

from flask import Flask

from portal.api.registry import RESOURCES
from tests.unit.portal.routes import visits

# A page's POST, and the operations by which a program does the same.
SAME: dict[str, set[str]] = {
    "appliances.bulk": {"Appliances.bulk"},
    "appliances.release_guard": {"Fleet outage.release_guard"},
    "appliances.drain": {"Appliances.drain"},
    "appliances.edit": {"Appliances.change"},
    "appliances.reinstate": {"Appliances.reinstate"},
    "appliances.retire": {"Appliances.retire"},
    "appliances.revoke": {"Appliances.revoke"},
    "appliances.undrain": {"Appliances.undrain"},
    "enrollment.revoke_certificate": {"Certificates.revoke"},
    "enrollment.unfence": {"Appliances.unfence"},
    "enrollment.allow_renewal": {"Appliances.allow_renewal"},
    "console.discard": {"Removals.discard"},
    "enrollment.add": {"Enrollment tokens.create_enrollment"},
    "enrollment.reenroll": {"Appliances.reenroll"},
    "enrollment.revoke_token": {"Enrollment tokens.revoke"},
    "console.clean_jobs": {"Maintenance.clean_jobs"},
    "console.discard_notification": {"Maintenance.discard_notification"},
    "console.discard_notifications": {"Maintenance.discard_notifications"},
    "console.retry_notification": {"Maintenance.retry_notification"},
    "console.retry_notifications": {"Maintenance.retry_notifications"},
    "invitations.resend": {"Invitations.resend"},
    "invitations.revoke": {"Invitations.revoke"},
    "jobs.add": {
        "Jobs.submit",
        "Job templates.create",
        "Job schedules.create",
        "Job schedules.replace",
    },
    "jobs.policies": {"Container policies.replace"},
    "jobs.settings": {"Queue settings.replace"},
    "jobs.hide_variable": {"Jobs.hide_variables"},
    "job_schedules.delete": {"Job schedules.delete"},
    "job_schedules.disable": {"Job schedules.disable"},
    "job_schedules.enable": {"Job schedules.enable"},
    "job_schedules.run": {"Job schedules.run"},
    "jobs.fit": {"Jobs.dry_run"},
    "jobs.remove_template": {"Job templates.delete"},
    "images.delete": {"Images.delete"},
    "jobs.stop": {"Jobs.stop"},
    "jobs.retry": {"Jobs.retry"},
    "jobs.change_priority": {"Jobs.change_priority"},
    "jobs.stop_all": {"Jobs.stop_all"},
    "alerts.remove_receiver": {"Receivers.delete"},
    "alerts.acknowledge": {"Alerts.acknowledge"},
    "notification_policy.index": {"Notification policy.replace"},
    "alerts.edit_receiver": {"Receivers.change"},
    "alerts.test_receiver": {"Receivers.test"},
    "alerts.receivers": {"Receivers.create"},
    "alerts.add_rule": {"Rules.create", "Rules.preview", "Rules.backtest"},
    "alerts.remove_rule": {"Rules.delete"},
    "alerts.edit_rule": {"Rules.replace", "Rules.preview", "Rules.backtest"},
    "silences.expire": {"Silences.expire"},
    "silences.index": {"Silences.create"},
    "silences.silence_alert": {"Silences.create"},
    "alerts.switch_rule": {"Rules.enable", "Rules.disable"},
    "second_factor.begin": {"SecondFactor.begin"},
    "second_factor.confirm": {"SecondFactor.confirm"},
    "second_factor.off": {"SecondFactor.off"},
    "second_factor.renew": {"SecondFactor.renew"},
    "users.reset_two_factor": {"Users.reset_factor"},
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
    "session.forgot",
    "session.reset",
    "session.code",
    "second_factor.download",
    "session.login",
    "session.logout",
    "session.switch",
    "users.end_support",
    "users.start_support",
}


def test_every_form_of_a_page_has_an_operation(app: Flask) -> None:
    forms = {
        str(route.endpoint)
        for route, method in visits(app)
        if method != "GET" and not str(route).startswith(("/api/", "/dashboards/"))
    }
    assert forms == SAME.keys() | OF_BROWSERS


def test_the_named_operations_exist() -> None:
    known = {name for resource in RESOURCES for name in resource.needs}
    assert set().union(*SAME.values()) <= known


# What a page shows, and the operations that tell a program the same.
SHOWN: dict[str, set[str]] = {
    "alerts.index": {"Alerts.list_all"},
    "alerts.show": {"Alerts.show", "Alerts.transitions"},
    "appliances.edit": {"Appliances.show"},
    "appliances.events": {"Appliances.events"},
    "appliances.index": {"Appliances.list_all", "Fleet outage.show_guard"},
    "appliances.show": {"Appliances.show", "Appliances.events", "Jobs.list_all"},
    "audit.export": {"Audit.export"},
    "audit.index": {"Audit.list_all"},
    "enrollment.expiring": {"Certificates.list_expiring"},
    "enrollment.certificates": {"Appliances.list_of_appliance"},
    "console.export": {"Removals.export"},
    "console.index": {"Platform.show_summary", "Platform.show_growth"},
    "console.removals": {"Removals.list_all", "Removals.show"},
    "enrollment.tokens": {"Enrollment tokens.list_all", "Enrollment tokens.show"},
    "console.maintenance": {
        "Maintenance.show",
        "Maintenance.notifications",
        "Maintenance.stuck_jobs",
    },
    "reports.export": {"Reports.export"},
    "reports.index": {"Reports.show"},
    "gpu_usage.export": {"GPU usage.export"},
    "gpu_usage.index": {"GPU usage.show"},
    "invitations.index": {"Invitations.list_all", "Invitations.show"},
    "images.index": {"Images.list_all"},
    "images.show": {"Images.show"},
    "jobs.efficiency": {"Jobs.efficiency"},
    "jobs.index": {"Jobs.list_all"},
    "jobs.policies": {"Container policies.show"},
    "jobs.settings": {"Queue settings.show"},
    "job_schedules.index": {"Job schedules.list_all"},
    "job_schedules.show": {"Job schedules.show", "Job schedules.runs"},
    "jobs.templates": {"Job templates.list_all", "Job templates.show"},
    "jobs.show": {"Jobs.show", "Jobs.events", "Jobs.log", "Jobs.usage"},
    "alerts.edit_receiver": {"Receivers.show"},
    "alerts.receivers": {"Receivers.list_all", "Notifications.list_sent"},
    "alerts.edit_rule": {"Rules.show"},
    "alerts.rules": {"Rules.list_all"},
    "notification_policy.index": {"Notification policy.show", "Notification policy.preview"},
    "runbooks.index": {"Rules.pack"},
    "runbooks.show": {"Rules.pack"},
    "silences.index": {"Silences.list_all", "Silences.show"},
    "second_factor.index": {"SecondFactor.show"},
    "settings.index": {"Me.show_me", "Sessions.list_all", "Tokens.list_tokens"},
    "tenants.index": {"Tenants.list_all"},
    "tenants.quotas": {"Tenants.show_quotas", "Tenants.show_usage"},
    "tenants.removal": {"Tenants.show"},
    "tenants.show": {"Tenants.show", "Users.list_all", "Invitations.list_all"},
    "tenants.usage": {"Tenants.show_usage"},
    "users.index": {"Users.list_all", "Invitations.list_all"},
    "users.show": {"Users.show"},
}
# Empty forms, the way in and what a browser draws.
OF_PEOPLE = {
    "enrollment.add",
    "home.health",
    "home.index",
    "invitations.accept",
    "jobs.add",
    "jobs.open_port",
    "oidc.callback",
    "registry.token",
    "oidc.start",
    "session.forgot",
    "session.reset",
    "alerts.add_rule",
    "session.code",
    "second_factor.qr_code",
    "session.login",
    "static",
    "users.start_support",
}


def test_everything_that_a_page_shows_has_an_operation(app: Flask) -> None:
    shown = {
        str(route.endpoint)
        for route, method in visits(app)
        if method == "GET" and not str(route).startswith(("/api/v1/", "/dashboards/"))
    }
    assert shown - {"api-docs.openapi_json"} == SHOWN.keys() | OF_PEOPLE
    known = {name for resource in RESOURCES for name in resource.needs}
    assert set().union(*SHOWN.values()) <= known
