"""The form that submits a job."""

from collections.abc import Iterable

from wtforms import DecimalField, IntegerField, SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, InputRequired, NumberRange

from jobqueue.service import JobRequest
from jobqueue.states import JobKind
from portal.forms.base import Form
from portal.forms.fields import CommandField, PairsField, SizeField
from tenants.models import Appliance

GIB = 1024**3
ANY_APPLIANCE = ""
RENAMED = {"gpu_memory_bytes": "gpu_memory", "memory_bytes": "memory", "appliance_id": "appliance"}
KIND_CHOICES = [
    SelectChoice(JobKind.BATCH.value, "Batch: ends with its exit code"),
    SelectChoice(JobKind.SERVICE.value, "Service: runs until stopped"),
]


class JobForm(Form):
    """What to run, and what it needs."""

    name = StringField("Name", [DataRequired("Give the job a name.")])
    image = StringField("Container image", [DataRequired("Name a container image.")])
    command = CommandField("Command", default=list)
    env = PairsField("Environment", default=dict)
    kind = SelectField("Kind", choices=KIND_CHOICES)
    gpus = IntegerField(
        "GPUs", [InputRequired("Enter a number; 0 for none."), NumberRange(0)], default=0
    )
    gpu_memory = SizeField("Memory of each GPU", default=0)
    cpus = DecimalField(
        "CPU cores", [InputRequired("Enter a number."), NumberRange(0)], default=1, places=None
    )
    memory = SizeField("Memory", default=GIB)
    appliance = SelectField("Appliance", choices=[])

    def offer(self, appliances: Iterable[Appliance]) -> None:
        """Let the user choose among these appliances, or any."""
        named = [SelectChoice(appliance.id, _described(appliance)) for appliance in appliances]
        self.appliance.choices = [SelectChoice(ANY_APPLIANCE, "Any: the first free one"), *named]

    def request(self) -> JobRequest:
        """Return what the user asks for."""
        return JobRequest(
            name=self.name.data.strip(),
            image=self.image.data.strip(),
            command=self.command.data,
            env=self.env.data,
            kind=JobKind(self.kind.data),
            gpus=self.gpus.data,
            gpu_memory_bytes=self.gpu_memory.data,
            cpus=float(self.cpus.data),
            memory_bytes=self.memory.data,
            appliance_id=self.appliance.data or None,
        )


def _described(appliance: Appliance) -> str:
    gpus = len(appliance.inventory.get("gpus", []))
    return f"{appliance.name} ({gpus} GPU{'' if gpus == 1 else 's'}, {appliance.state.value})"
