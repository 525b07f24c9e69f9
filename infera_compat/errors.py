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


def words_of(error: BaseException) -> str:
    """What an exception says, also one of somebody else's that can't be made a text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 (it is anybody's __str__)
        return f"{type(error).__name__}, which can't be printed"
