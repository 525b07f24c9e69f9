"""What infera-compat raises: what happened, found, expected, and how to switch it off."""

from __future__ import annotations

OFF_SWITCH = "INFERA_VLLM_OPS_DISABLE=1"


class CompatError(RuntimeError):
    """A start that the operator's own settings forbid.

    Raised only for what was asked for explicitly (a setting that means nothing, INFERA_STRICT);
    everything chosen automatically falls back to stock vLLM instead.
    """

    def __init__(self, what: str, *, found: str, expected: str, do: str) -> None:
        """Keep the four parts, and join them into one message."""
        self.what, self.found, self.expected, self.do = what, found, expected, do
        super().__init__(
            f"infera-compat: {what}. Found: {found}. Expected: {expected}. {do} "
            f"({OFF_SWITCH} switches infera-compat off.)"
        )


class Refused(Exception):
    """A seam that can't be bound with certainty: the op stays stock, and this says why."""
