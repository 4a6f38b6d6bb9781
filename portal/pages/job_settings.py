"""`/jobs/settings` and `/jobs/policies`: how jobs are placed, and what they may use."""

from dataclasses import asdict

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from jobqueue.jobs.settings import (
    DESCRIPTIONS,
    read_policies,
    read_settings,
    set_policies,
    set_settings,
)
from jobqueue.partitions.isolation import ISOLATION, MODE_NAMES
from portal.context import current_scope, database
from portal.forms.job_settings import (
    ISOLATION_FIELDS,
    ORDER_FIELDS,
    PoliciesForm,
    QueueSettingsForm,
)
from portal.pages.common import Pages
from protocol.gpu_slices import PartitionMode
from protocol.job_spec import ContainerPolicy
from tenants.permissions import Permission

pages = Pages("job_settings", __name__)


@pages.form("/jobs/policies")
def policies() -> ResponseReturnValue:
    """Choose the container policies that jobs may use."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    with database() as session:
        choice = read_policies(session, scope, tenant_id)
    form = PoliciesForm(data={"allowed": choice.allowed, "default": choice.default})
    form.allowed.choices = [(policy.value, policy.value) for policy in ContainerPolicy]
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                set_policies(session, scope, tenant_id, form.choice())
            flash("Container policies saved", "success")
            return redirect(url_for(".policies"))
    return render_template("jobs/policies.html", form=form, descriptions=DESCRIPTIONS), form.status


@pages.form("/jobs/settings")
def settings() -> ResponseReturnValue:
    """Choose how jobs are placed and what they may use."""
    scope = current_scope()
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    with database() as session:
        stored = read_settings(session, scope, tenant_id)
    isolation = {name: getattr(stored, name) or "" for name in ISOLATION_FIELDS}
    form = QueueSettingsForm(data=asdict(stored) | asdict(stored.ordering) | isolation)
    if not form.is_submitted():
        form.data_roots.data = list(stored.data_roots)
    if form.validate_on_submit():
        with form.showing_errors(renamed={f"ordering.{name}": name for name in ORDER_FIELDS}):
            with database() as session:
                set_settings(session, scope, tenant_id, form.settings())
            flash("Queue settings saved", "success")
            return redirect(url_for(".settings"))
    modes = [mode for mode in PartitionMode if mode is not PartitionMode.WHOLE]
    return render_template(
        "jobs/settings.html", form=form, isolation=ISOLATION, mode_names=MODE_NAMES, modes=modes
    ), form.status
