"""What we do beside vLLM's own work must not cost it a start or a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from infera_compat import report
from infera_compat.errors import CompatError, words_of


@contextmanager
def harmless(what: str, strict: bool) -> Iterator[None]:
    """Turn an accident in here into one WARNING; `what` reads "binding the ops", say.

    A CompatError is no accident but a stop that the operator asked for. strict: so is everything,
    under INFERA_STRICT, or where a kernel that was asked for by name depends on it.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, CompatError):
            raise
        if strict:
            raise CompatError(
                f"{what} failed, under INFERA_STRICT or for a kernel asked for by name",
                found=words_of(error),
                expected="no accident",
                do="Unset those to go on with stock vLLM.",
            ) from error
        report.warn(
            f"infera-compat: {what} failed ({words_of(error)}). vLLM goes on "
            "without it. Please report this; INFERA_VLLM_OPS_DISABLE=1 keeps us out of the way."
        )
