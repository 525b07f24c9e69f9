"""`python -m infera_compat.kernels.conformance`: verify with nothing but Python and torch.

For a machine without the command line's libraries: `infera-compat verify` says the same in a table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from infera_compat.errors import CompatError


def main() -> int:
    """Run the checks, print a line for each; 0: nothing failed, 1: something did, 2: not begun."""
    given = _arguments()
    try:
        return _verify(given)
    except CompatError as error:
        print(error, file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m infera_compat.kernels.conformance",
        description="Whether a kernel keeps the contract.",
    )
    parser.add_argument("name", help="A kernel that is installed, or module:attribute.")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="The file to write the record to.")
    parser.add_argument("--only", action="append", default=[], metavar="CHECK")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-record", action="store_true", help="Write no record.")
    return parser.parse_args()


def _verify(given: argparse.Namespace) -> int:
    try:
        import torch  # noqa: F401 (to say in a word that it is missing)
    except ModuleNotFoundError as error:
        raise CompatError(
            "verify needs torch", found=str(error), expected="torch", do="Install it."
        ) from error
    from infera_compat.kernels.conformance import lines, record
    from infera_compat.kernels.conformance.check import Check
    from infera_compat.kernels.conformance.outcome import Outcome

    def told(check: Check, outcome: Outcome | None) -> None:
        if outcome is not None:
            print(lines.line(outcome), flush=True)

    made = record.make(
        record.named(given.name), record.device(given.device), given.seed, given.only, told
    )
    for text in lines.refusals(made.refused):
        print(f"not counted: {text}")
    where = None if given.no_record else record.write(made, given.out, not given.only)
    print(lines.closing(made))
    if where is not None:
        print(f"Record: {where}")
    return 0 if made.passed else 1


if __name__ == "__main__":
    sys.exit(main())
