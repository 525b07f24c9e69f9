"""What we do beside vLLM's own work must not cost it a start or a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infera_compat import report
from infera_compat.errors import CompatError


@contextmanager
def harmless(what: str, strict: bool) -> Iterator[None]:
    """Turn an accident in here into one WARNING; `what` reads "binding the ops", say.

    A CompatError is no accident but a stop that the operator asked for, and under INFERA_STRICT so
    is everything.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, CompatError):
            raise
        if strict:
            raise CompatError(
                f"INFERA_STRICT: {what} failed",
                found=f"{type(error).__name__}: {error}",
                expected="no accident",
                do="Unset INFERA_STRICT to go on with stock vLLM.",
            ) from error
        report.warn(
            f"infera-compat: {what} failed ({type(error).__name__}: {error}). vLLM goes on "
            "without it. Please report this; INFERA_VLLM_OPS_DISABLE=1 keeps us out of the way."
        )
