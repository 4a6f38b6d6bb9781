"""`/datasets/settings`: where a tenant's results go, and who serves its datasets."""

from dataclasses import asdict

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from datasets.settings import bucket_choices, read_settings, set_settings
from portal.context import current_scope, database
from portal.forms.data_settings import DataSettingsForm
from portal.pages.common import Pages
from tenants.permissions import Permission

pages = Pages("data_settings", __name__)


@pages.form("/datasets/settings")
def index() -> ResponseReturnValue:
    """Choose where results go, and who serves datasets."""
    scope = current_scope()
    scope.require(Permission.MANAGE_DATA)
    tenant_id = scope.require_tenant()
    with database() as session:
        stored = read_settings(session, scope, tenant_id)
        buckets = bucket_choices(session, tenant_id)
    form = DataSettingsForm(data=asdict(stored))
    form.results_connection_id.choices = [("", "The portal's store"), *buckets]
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                set_settings(session, scope, tenant_id, form.settings())
            flash("Data settings saved", "success")
            return redirect(url_for(".index"))
    return render_template("datasets/settings.html", form=form), form.status
