"""A fuzz target for the line protocol parser: `make fuzz`, with libFuzzer's options in FUZZ_ARGS.

For any bytes, the fast path of the parser gives the same points as the exact grammar.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

from tests.fuzz.lines import LINES

with atheris.instrument_imports():
    from tests.fuzz.exact import check


def main() -> None:
    """Fuzz from unusual lines until the limits of libFuzzer or a difference."""
    with TemporaryDirectory() as folder:
        for number, line in enumerate(LINES):
            Path(folder, f"{number}").write_bytes(line + b"\n" + LINES[0])
        atheris.Setup([*sys.argv, folder], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
