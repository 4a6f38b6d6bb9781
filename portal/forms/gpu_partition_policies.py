"""The form of a partition policy."""

from collections import Counter

from wtforms import BooleanField, IntegerField, SelectField, StringField
from wtforms.fields import SelectChoice
from wtforms.validators import DataRequired, Optional

from jobqueue.partitions.checks import PolicyRequest
from portal.forms.form import Form, NotationField, PairsField
from protocol.gpu_slices import MAX_INSTANCES, PartitionMode

MODE_CHOICES = [
    SelectChoice(PartitionMode.MIG.value, "MIG: instances with memory of their own"),
    SelectChoice(PartitionMode.MPS.value, "MPS: shares with a memory limit"),
    SelectChoice(PartitionMode.TIME_SLICING.value, "Time slicing: jobs take turns"),
    SelectChoice(PartitionMode.WHOLE.value, "Whole GPUs: not shared"),
]


def parse_layout(text: str) -> list[str]:
    """Return the profiles of a layout such as `3g.40gb, 4 x 1g.10gb`."""
    layout: list[str] = []
    for entry in filter(None, (part.strip() for part in text.replace("\n", ",").split(","))):
        count, times, profile = (part.strip() for part in entry.partition(" x "))
        if times and not (count.isdecimal() and 1 <= int(count[:3]) <= MAX_INSTANCES):
            raise ValueError(f"{entry[:40]!r} is not a count of profiles such as '4 x 1g.10gb'.")
        layout += [profile] * int(count) if times else [entry]
    return layout


def format_layout(layout: list[str]) -> str:
    """Return a layout as users enter it."""
    counts = Counter(layout).items()
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts)


class PolicyForm(Form):
    """A partition policy."""

    name = StringField("Name", [DataRequired("Enter a name.")])
    gpu_model = StringField("GPU model", default="")
    labels = PairsField("Appliance labels", default=dict)
    mode = SelectField("Share GPUs by", choices=MODE_CHOICES, default=PartitionMode.MIG.value)
    layout = NotationField("MIG layout", parse=parse_layout, format=format_layout, default=list)
    may_change_layout = BooleanField("May change the layout", default=False)
    shares = IntegerField("Shares", [Optional()], default=1)
    position = IntegerField("Position", [Optional()])

    def request(self) -> PolicyRequest:
        """Return the policy; a field of another mode has its default."""
        mode = PartitionMode(self.mode.data)
        is_mig = mode is PartitionMode.MIG
        is_shared = mode in {PartitionMode.MPS, PartitionMode.TIME_SLICING}
        return PolicyRequest(
            name=self.name.data,
            gpu_model=self.gpu_model.data or "",
            labels=self.labels.data,
            mode=mode,
            layout=(self.layout.data or []) if is_mig else [],
            may_change_layout=self.may_change_layout.data and is_mig,
            shares=(self.shares.data or 1) if is_shared else 1,
            position=self.position.data,
        )
