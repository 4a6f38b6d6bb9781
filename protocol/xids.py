"""XIDs, the error codes of NVIDIA's driver: what each means, and how severe it is.

An XID is *fatal* when the GPU must be reset before it can be trusted, a *warning* when the hardware
has a defect but still works, and an *application's* when the program caused it. Codes that are not
listed are warnings.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), by
the column of the immediate action: RESET_GPU and RESTART_BM are fatal, RESTART_APP and what only
follows from another error is the application's, what is ignored or investigated is a warning. The
departures have a comment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class XIDKind(StrEnum):
    """The severity of an XID."""

    FATAL = "fatal"
    WARNING = "warning"
    APPLICATION = "application"


@dataclass(frozen=True, slots=True)
class XID:
    """One code: `title` completes "XID 79: ...", `advice` says what to do."""

    code: int
    kind: XIDKind
    title: str
    advice: str


_RESET = "Reset the GPU or reboot the host. Have the GPU replaced if it comes back."
_REBOOT = (
    "Power the host off and on. Check seat, cables and power; replace the GPU if it comes back."
)
_FIRMWARE = "Reset the GPU or reboot the host. If it comes back, try another driver."
_LINK = (
    "Reset all GPUs of the host or reboot it. Check bridges and Fabric Manager if it comes back."
)
_WATCH = "Nothing at once. Reset the GPU when it is idle, and replace it when they become many."
_SUPPORT = "Nothing at once. Keep the driver's log for NVIDIA's support if it comes back."
_PROGRAM = "Look at the job that ran there. Suspect the GPU if other programs fail there too."
_FOLLOWS = "Look for the error before it on the same GPU."

_FATAL = {
    46: ("the GPU stopped processing", _RESET),
    48: ("a double-bit memory error", _RESET),
    62: ("the GPU's micro-controller halted", _RESET),
    64: ("a row of memory could not be remapped", _RESET),
    # Its register bits, which NVML does not give, could make it harmless; a reset clears it.
    74: ("an NVLink error", _LINK),
    79: ("the GPU has fallen off the bus", _REBOOT),
    95: ("an uncontained memory error", _RESET),
    110: ("a security fault", _FIRMWARE),
    119: ("the GPU's system processor did not answer", _FIRMWARE),
    120: ("an error in the GPU's system processor", _FIRMWARE),
    136: ("an NVLink could not be trained", _LINK),
    140: ("an unrecovered memory error", _RESET),
    143: ("the GPU could not be initialized", _RESET),
    # RESTART_VM in the catalog: no program runs there until then.
    151: ("the rotation of keys failed", _FIRMWARE),
    158: ("a fatal timeout of the GPU", _RESET),
}
_WARNINGS = {
    54: ("power cables are not connected, clocks are reduced", "Check the GPU's power cables."),
    61: ("the GPU's micro-controller met a breakpoint", _SUPPORT),
    63: ("a row of memory was remapped or a page retired", _WATCH),
    92: ("many single-bit memory errors", _WATCH),
    93: ("the GPU's InfoROM wears out", _SUPPORT),
    # RESTART_APP in the catalog, but the memory is the cause.
    94: ("a memory error, contained to one program", _WATCH),
    # RESET_GPU in the catalog; a program that hangs in a kernel causes it as well.
    109: ("a context switch timed out", _WATCH),
    121: ("an error of the link to the CPU", _SUPPORT),
    137: ("an NVLink access without the right to it", _PROGRAM),
    144: ("an NVLink error (SAW)", _LINK),
    145: ("an NVLink error (RLW)", _LINK),
    146: ("an NVLink error (TLW)", _LINK),
    147: ("an NVLink error (TREX)", _LINK),
    148: ("an NVLink error (NVLPW_CTRL)", _LINK),
    149: ("an NVLink error (NETIR)", _LINK),
    150: ("an NVLink error (MSE)", _LINK),
    154: ("the driver asks for a recovery", "The kernel's log says which: look for Xid 154."),
    155: ("an NVLink error that software reported", _LINK),
    156: ("a part of the GPU was retired", _WATCH),
    157: ("a part of the GPU could not be retired", _SUPPORT),
    171: ("an uncorrectable error in the memory", _WATCH),
    172: ("an uncorrectable error in the caches", _WATCH),
}
_APPLICATION = {
    8: ("the GPU stopped processing", _PROGRAM),
    11: ("a corrupt command stream", _PROGRAM),
    13: ("an exception in a kernel", _PROGRAM),
    25: ("an illegal command stream", _PROGRAM),
    31: ("a page fault of the GPU's memory", _PROGRAM),
    32: ("a corrupt command stream", _PROGRAM),
    37: ("an unknown command", _PROGRAM),
    43: ("the GPU stopped processing for one program", _PROGRAM),
    44: ("a fault while the context was switched", _FOLLOWS),
    45: ("a program was removed after an earlier error", _FOLLOWS),
    60: ("an exception of the security engine", _PROGRAM),
    69: ("a class error in a kernel", _PROGRAM),
    80: ("a corrupt command stream", _PROGRAM),
}
_ENGINES = {
    "copy engine": (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
    "video decoder": (68, 83, 84, 88, 89, 96, 97, 98),
    "JPEG decoder": (82, *range(99, 106)),
    "optical flow engine": (86, 139),
}


def _catalog() -> Mapping[int, XID]:
    listed = {
        XIDKind.FATAL: _FATAL,
        XIDKind.WARNING: _WARNINGS,
        XIDKind.APPLICATION: _APPLICATION
        | {
            code: (f"an exception of the {engine}", _PROGRAM)
            for engine, codes in _ENGINES.items()
            for code in codes
        },
    }
    return {
        code: XID(code, kind, title, advice)
        for kind, entries in listed.items()
        for code, (title, advice) in sorted(entries.items())
    }


XIDS: Mapping[int, XID] = _catalog()


def xid(code: int) -> XID:
    """Return the XID of a code; one that is not listed is a warning."""
    return XIDS.get(code) or XID(code, XIDKind.WARNING, "an error of the driver", _SUPPORT)
