"""Who may send packets of a gang's network to this appliance: its other appliances alone.

VXLAN knows no sender. Without a filter, whatever reaches the host, such as a job on the engine's
bridge, could put packets into the network of a gang whose number it guesses. So each gang has a UDP
port of its own, and a chain of iptables drops what comes to it from elsewhere. It filters before
routing, so that packets of this host's containers, which the engine would send on with the
address of the host, are dropped as well.
"""

import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from shutil import which

from collector.gang_networks.errors import NetworkError
from collector.gang_networks.namespaces import entered

TABLE, HOOK = "raw", "PREROUTING"
_SECONDS = 30
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def firewall_problem() -> str:
    """Return why packets can't be filtered; "" if they can."""
    missing = [name for name in ("iptables-save", "iptables-restore") if _program(name) is None]
    return f"{missing[0]} is not installed" if missing else ""


class Firewall:
    """The chains of one agent.

    Args:
        owner: the appliance's id, of which its chains' names are made.
        underlay: the namespace that it filters.
    """

    def __init__(self, owner: str, underlay: Callable[[], int]) -> None:
        self._prefix = f"VEDETTE-{sha256(owner.encode()).hexdigest()[:6]}-"
        self._underlay = underlay

    def admit(self, gang_id: str, port: int, addresses: Collection[str]) -> None:
        """Let only some addresses send to a gang's port.

        Raises:
            NetworkError: the filter can't be set.
        """
        chain = self._chain(gang_id)
        rules = [f"-A {chain} -s {address}/32 -j RETURN" for address in sorted(addresses)]
        rules.append(f"-A {chain} -j DROP")
        saved = self._saved()
        if rules == [line for line in saved if line.startswith(f"-A {chain} ")] and any(
            _is_jump(line, chain) and f"--dport {port} " in f"{line} " for line in saved
        ):
            return
        old = [_deletion(line) for line in saved if _is_jump(line, chain)]
        jump = f"-I {HOOK} -p udp -m udp --dport {port} -j {chain}"
        # Naming a chain empties it; all lines apply together, or none.
        self._restore([f":{chain} - [0:0]", *rules, *old, jump])

    def keep_only(self, gang_ids: Collection[str], on_step: Callable[[str], object]) -> None:
        """Remove the chains of other gangs; `on_step` is called before each.

        Raises:
            NetworkError: the filter can't be set.
        """
        wanted = {self._chain(gang_id) for gang_id in gang_ids}
        saved = self._saved()
        chains = [line[1:].split()[0] for line in saved if line.startswith(f":{self._prefix}")]
        for chain in [chain for chain in chains if chain not in wanted]:
            on_step("clean chain")
            jumps = [_deletion(line) for line in saved if _is_jump(line, chain)]
            self._restore([*jumps, f"-F {chain}", f"-X {chain}"])

    def _chain(self, gang_id: str) -> str:
        return f"{self._prefix}{sha256(gang_id.encode()).hexdigest()[:12]}"

    def _saved(self) -> Sequence[str]:
        return self._run(["iptables-save", "-t", TABLE]).splitlines()

    def _restore(self, lines: Sequence[str]) -> None:
        text = "\n".join([f"*{TABLE}", *lines, "COMMIT", ""])
        self._run(["iptables-restore", "--noflush", "--wait"], text)

    def _run(self, command: Sequence[str], text: str = "") -> str:
        program = _program(command[0])
        if program is None:
            raise NetworkError(f"{command[0]} is not installed.")
        try:
            # The program inherits the namespace of this thread.
            with entered(self._underlay()):
                process = subprocess.Popen(  # noqa: S603 - words of this module
                    [program, *command[1:]],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            with process:
                try:
                    output, errors = process.communicate(text, timeout=_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
        except (OSError, subprocess.SubprocessError) as error:
            raise NetworkError(f"{command[0]} failed: {error}.") from error
        if process.returncode != 0:
            raise NetworkError(f"{command[0]} failed: {errors.strip()[-300:]}")
        return output


def _is_jump(line: str, chain: str) -> bool:
    return line.startswith(f"-A {HOOK} ") and line.endswith(f" -j {chain}")


def _deletion(line: str) -> str:
    return f"-D{line.removeprefix('-A')}"


def _program(name: str) -> str | None:
    return which(name, path=_PATH)
