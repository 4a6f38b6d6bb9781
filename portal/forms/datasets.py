"""Forms of datasets and data connections."""

from collections.abc import Iterable

from wtforms import PasswordField, SelectField, StringField, TextAreaField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired

from datasets.catalog import DatasetChange, DatasetRequest
from datasets.connections import ConnectionRequest
from datasets.models import DataConnection
from portal.forms.form import Form
from tenants.models import Appliance


class DatasetForm(Form):
    """A new dataset."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    description = TextAreaField("Description")
    source_url = StringField("Source")
    connection_id = SelectField("Connection")
    appliance_id = SelectField("Read by")

    def offer(self, connections: Iterable[DataConnection], appliances: Iterable[Appliance]) -> None:
        """Set the choices."""
        self.connection_id.choices = _connections(connections)
        self.appliance_id.choices = appliance_choices(appliances)

    def request(self) -> DatasetRequest:
        """Return the dataset."""
        return DatasetRequest(
            name=self.name.data,
            description=self.description.data or "",
            source_url=self.source_url.data or "",
            connection_id=self.connection_id.data or None,
            appliance_id=self.appliance_id.data or None,
        )


class DatasetChangeForm(Form):
    """A change of a dataset."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    description = TextAreaField("Description")
    connection_id = SelectField("Connection")

    def offer(self, connections: Iterable[DataConnection]) -> None:
        """Set the choices."""
        self.connection_id.choices = _connections(connections)

    def request(self) -> DatasetChange:
        """Return the change."""
        return DatasetChange(
            name=self.name.data,
            description=self.description.data or "",
            connection_id=self.connection_id.data or None,
        )


class ConnectionForm(Form):
    """A data connection; empty secrets stay as they are."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    url = StringField("For", [DataRequired("Enter what it is for, such as s3://bucket.")])
    endpoint_url = StringField("Endpoint")
    region = StringField("Region")
    access_key_id = StringField("Access key ID")
    secret_access_key = PasswordField("Secret access key")
    session_token = PasswordField("Session token")
    bearer_token = PasswordField("Bearer token")

    def request(self) -> ConnectionRequest:
        """Return the connection."""
        names = ConnectionRequest.__dataclass_fields__
        return ConnectionRequest(**{name: self._fields[name].data or "" for name in names})


def appliance_choices(appliances: Iterable[Appliance]) -> list[SelectChoice]:
    """Return the choices of the appliance that reads a source."""
    choices = [SelectChoice(appliance.id, appliance.name) for appliance in appliances]
    return [SelectChoice("", "Any appliance that is online"), *choices]


def _connections(connections: Iterable[DataConnection]) -> list[SelectChoice]:
    choices = [SelectChoice(row.id, f"{row.name} ({row.url})") for row in connections]
    return [SelectChoice("", "None: public, or on an appliance"), *choices]
