"""Tests of kernels: they need torch, so they are no part of the tests that run everywhere."""

from __future__ import annotations

import random
import zlib

import pytest


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> int:
    """Each test draws numbers of its own, the same in each run."""
    import torch  # here: other folders are collected where there is no torch

    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    torch.manual_seed(seed)
    return seed
