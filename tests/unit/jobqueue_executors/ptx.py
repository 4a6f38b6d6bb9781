"""An interpreter of the little PTX that the challenge's kernels use: no GPU is needed for it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MASK = 2**64 - 1
_PARAMETER = re.compile(r"\.param \.\w+ (\w+)")
_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "not": lambda a: ~a,
    "add": lambda a, b: a + b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "mul.lo": lambda a, b: a * b,
    "mul.wide": lambda a, b: a * b,
    "mul.hi": lambda a, b: a * b >> 64,
    "setp.ge": lambda a, b: int(a >= b),
    "setp.lt": lambda a, b: int(a < b),
}


def run_kernel(
    text: str, name: str, *, shape: tuple[int, int], memory: dict[int, int], **values: int
) -> None:
    """Run a kernel in the threads of all blocks in turn; memory has words by their address."""
    body = text.split(f".visible .entry {name}(")[1].split("\n}", maxsplit=1)[0]
    head, _, code = body.partition("{")
    assert set(_PARAMETER.findall(head)) == values.keys()
    lines = [line.strip().rstrip(";") for line in code.splitlines()]
    lines = [line for line in lines if line and not line.startswith(".reg")]
    blocks, threads = shape
    for block in range(blocks):
        for thread in range(threads):
            grid = {"%ctaid.x": block, "%tid.x": thread, "%ntid.x": threads, "%nctaid.x": blocks}
            _Thread(lines, grid, values, memory).run()


@dataclass
class _Thread:
    lines: list[str]
    registers: dict[str, int]
    values: Mapping[str, int]
    memory: dict[int, int]

    def run(self) -> None:
        at = 0
        while (line := self.lines[at]) != "ret":
            at += 1
            if line.startswith("@%p "):
                if not self.registers["%p"]:
                    continue
                line = line.removeprefix("@%p ")
            if line.startswith("bra "):
                at = self.lines.index(f"{line.removeprefix('bra ')}:")
            elif not line.endswith(":"):
                self._step(*line.split(" ", 1))

    def _step(self, name: str, text: str) -> None:
        if name.startswith("ld."):
            self._load(name, text)
            return
        target, *operands = text.split(", ")
        if name.startswith("st.global"):
            self.memory[self._address(target)] = self.registers[operands[0]]
            return
        kind, form = name.split(".")[:2]
        operation = _OPERATIONS.get(kind) or _OPERATIONS[f"{kind}.{form}"]
        numbers = [
            self.registers[operand] if operand.startswith("%") else int(operand)
            for operand in operands
        ]
        self.registers[target] = operation(*numbers) & MASK

    def _load(self, name: str, text: str) -> None:
        targets, source = text.rsplit(", ", 1)
        if name.startswith("ld.param"):
            self.registers[targets] = self.values[source.strip("[]")]
            return
        for index, target in enumerate(targets.strip("{}").split(", ")):
            self.registers[target] = self.memory[self._address(source) + 8 * index]

    def _address(self, text: str) -> int:
        return self.registers[text.strip("[]")]
