"""The form of a tenant's data settings."""

from wtforms import BooleanField, IntegerField, SelectField
from wtforms.validators import NumberRange, Optional

from datasets.settings import MAX_DAYS, DataSettings
from portal.forms.form import Form


class DataSettingsForm(Form):
    """Where results go, and who serves datasets."""

    allows_peers = BooleanField("Appliances of one site fetch datasets from each other first")
    results_connection_id = SelectField("Results go to", choices=[], default="")
    results_retention_days = IntegerField(
        "Keep results for (days)", [Optional(), NumberRange(1, MAX_DAYS)]
    )

    def settings(self) -> DataSettings:
        """Return the settings."""
        return DataSettings(
            results_connection_id=self.results_connection_id.data or None,
            results_retention_days=self.results_retention_days.data,
            allows_peers=self.allows_peers.data,
        )
