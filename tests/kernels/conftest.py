"""A device for each instruction set that this machine can run."""

from typing import TYPE_CHECKING

import pytest

from legato.kernels.library import NoKernels, instruction_sets, open_device

if TYPE_CHECKING:
    from legato.kernels._native import Device


def open_or_fail(num_threads: int, isa: str | None = None) -> "Device":
    device = open_device(num_threads, isa)
    assert not isinstance(device, NoKernels), device.reason
    return device


@pytest.fixture(params=instruction_sets() or ["none"])
def device(request: pytest.FixtureRequest) -> "Device":
    return open_or_fail(2, request.param)
