"""What of tensors on devices can be tested without one."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import tensor_bits

from datastates.providers import torch_device, torch_memory


def test_host_tensors_have_no_device() -> None:
    assert torch_device.device_of(torch.ones(3)) is None
    assert torch_device.device_of(torch.ones(3, device="meta")) is None


STARTS = st.sets(st.integers(0, 40), max_size=8)


@given(STARTS, st.integers(0, 40), st.integers(1, 40))
def test_a_copy_is_cut_where_another_pinned_piece_begins(
    starts: set[int], start: int, nbytes: int
) -> None:
    pinned = torch_device.Pinned()
    for at in starts:
        pinned.add(at)
    runs = list(pinned.split(start, nbytes))
    assert runs[0][0] == 0 and runs[-1][1] == nbytes
    assert all(a < b for a, b in runs) and all(a[1] == b[0] for a, b in pairwise(runs))
    cuts = {start + run[0] for run in runs[1:]}
    assert cuts == {at for at in starts if start < at < start + nbytes}


def test_memory_that_is_unpinned_cuts_nothing_any_more() -> None:
    pinned = torch_device.Pinned()
    for at in (100, 200, 300):
        pinned.add(at)
    pinned.remove(200)
    assert list(pinned.split(150, 200)) == [(0, 150), (150, 200)]
    with pytest.raises(ValueError, match="not in list"):
        pinned.remove(200)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
def test_a_tensor_is_read_and_looked_at_in_c_order(dtype: torch.dtype) -> None:
    """What is strided is gathered first; elements are counted, and never looked at as numbers."""
    tensor = (torch.arange(24).reshape(4, 6) % 5).to(dtype).t()
    source = torch_memory.DeviceSource(tensor, tensor.untyped_storage())
    found = np.empty(2 * tensor.element_size(), np.uint8)
    source.read(3 * tensor.element_size(), found)
    assert found.tobytes() == tensor_bits(tensor.reshape(-1)[3:5])
    looked_at = source.sample(np.array([0, 7, 23]))
    tensor.zero_()
    assert looked_at().tobytes() == tensor_bits(source.flat[[0, 7, 23]].view(dtype))
    assert source.flat.view(torch.uint8).numel() == tensor.nbytes


def test_a_tensor_is_filled_in_pieces_whatever_its_strides() -> None:
    values = torch.arange(24.0)
    data = values.view(torch.uint8).numpy()
    for target in (torch.zeros(4, 6), torch.zeros(6, 4).t()):
        sink = torch_memory.DeviceSink(target)
        for start in range(0, sink.nbytes, 20):
            sink.write(start, data[start : start + 20])
        assert (target.reshape(-1) == values).all()
