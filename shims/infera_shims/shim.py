"""What a shim says of a line of releases: data, no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infera_compat.contracts import Need

ELSEWHERE = "*"


@dataclass(frozen=True)
class Shim:
    """One line of releases.

    name: the module's. first: the first minor it was written for, as (major, minor).
    needs: every symbol that binding on these releases touches.
    moe_seams: the MoE seam by device type ("cpu", …; ELSEWHERE for the others).
    moe_layer: the class that holds a MoE layer in `static_forward_context`.
    moe_method: the path of attributes from such a layer to its quantisation method.
    """

    name: str
    first: tuple[int, int]
    needs: tuple[Need, ...]
    moe_seams: Mapping[str, str]
    moe_layer: str
    moe_method: str

    def moe_seam(self, device_type: str) -> str:
        """The MoE seam on a platform of this device type."""
        return self.moe_seams.get(device_type, self.moe_seams[ELSEWHERE])
