"""Tensors come back as they were: bits, dtype, shape, strides, ties, gradients."""

import numpy as np
import pytest
import torch
from support import assert_same, random_bits, tensor_bits, views
from torch import nn

import datastates as ds
from datastates.providers.torch_memory import DeviceSink, DeviceSource

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)
SHAPES = ((), (1,), (0,), (7,), (3, 5), (3, 0, 5), (2, 3, 4, 5), (1, 1, 1))


# Every dtype, every kind of shape.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_of_every_dtype_comes_back(ckpt, dtype):
    """Case 3."""
    state = {str(shape): random_bits(dtype, shape) for shape in (*SHAPES, (10_000,))}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_of_every_dtype_fills_a_target(ckpt, dtype):
    state = {str(shape): random_bits(dtype, shape) for shape in SHAPES}
    target = {key: random_bits(dtype, t.shape, seed=1) for key, t in state.items()}
    lies = {key: t.data_ptr() for key, t in target.items()}
    ckpt.save(state)
    assert ckpt.restore(into=target) is target
    assert_same(state, target)
    assert {key: t.data_ptr() for key, t in target.items()} == lies


def test_a_tensor_of_many_chunks_comes_back(make_ckpt):
    """An arena of 8 MiB makes chunks of 2 MiB; the last one is padded, rows cross nothing."""
    ckpt = make_ckpt(arena_nbytes=8 << 20)
    state = {
        "rows": random_bits(torch.int16, (1_000_003, 5)),
        "wide": random_bits(torch.float32, (3, 1_500_001)),
        "transposed": random_bits(torch.bfloat16, (1_000, 3_001)).t(),
        "bytes": random_bits(torch.uint8, (9_999_999,)),
    }
    ckpt.save(state)
    assert_same(state, ckpt.restore())
    target = {key: torch.empty_like(t) for key, t in state.items()}
    ckpt.restore(into=target)
    assert_same(state, target)


def test_a_huge_empty_shape_is_just_empty(ckpt):
    state = {"a": torch.empty(0, 1 << 40), "b": torch.empty(1 << 20, 0, 1 << 20)}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


def test_a_tensor_of_32_dimensions_comes_back(ckpt):
    state = {"a": torch.arange(8.0).reshape((1,) * 29 + (2, 2, 2))}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


def test_the_state_itself_may_be_a_tensor(ckpt):
    saved, target = torch.arange(5.0), torch.zeros(5)
    ckpt.save(saved)
    assert_same(saved, ckpt.restore())
    assert ckpt.restore(into=target) is target
    assert_same(saved, target)


# Strides.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("name", views(torch.zeros(2, 2, 3, 4)))
def test_a_view_is_saved_as_the_values_it_shows(ckpt, name, dtype):
    """Case 4: no `.contiguous()` by the user, and the source is left as it is."""
    view = views(random_bits(dtype, (2, 2, 3, 4)))[name]
    strides = view.stride()
    ckpt.save({"v": view})
    assert view.stride() == strides
    assert_same({"v": view}, ckpt.restore())


@pytest.mark.parametrize("name", views(torch.zeros(2, 2, 3, 4)))
def test_a_view_is_filled_in_place(ckpt, name):
    source = views(random_bits(torch.float32, (2, 2, 3, 4)))[name]
    base = torch.zeros(2, 2, 3, 4)
    target = views(base)[name]
    ckpt.save({"v": source})
    if name in ("expanded", "expanded within", "overlapping"):  # one element for several values
        with pytest.raises(ds.MismatchError, match="share memory"):
            ckpt.restore(into={"v": target})
        assert not base.any()
    else:
        ckpt.restore(into={"v": target})
        assert tensor_bits(target) == tensor_bits(source)
        assert target.stride() == views(base)[name].stride()


def test_values_around_a_filled_view_are_left_alone(ckpt):
    base = torch.zeros(6, 6)
    ckpt.save({"v": torch.ones(3, 3)})
    ckpt.restore(into={"v": base[::2, 1::2]})
    assert base.sum() == 9
    assert base[::2, 1::2].sum() == 9


@pytest.mark.parametrize(
    ("shape", "memory_format"),
    [
        ((4, 3, 5, 5), torch.channels_last),
        ((4, 3, 1, 1), torch.channels_last),
        ((4, 1, 3, 3), torch.channels_last),
        ((2, 3, 2, 4, 4), torch.channels_last_3d),
        ((2, 3, 1, 1, 1), torch.channels_last_3d),
    ],
)
def test_a_memory_format_comes_back(ckpt, shape, memory_format):
    """Also of 1x1 convolutions, whose two formats differ in strides alone."""
    weight = torch.randn(shape).contiguous(memory_format=memory_format)
    ckpt.save({"w": weight})
    restored = ckpt.restore()["w"]
    assert restored.stride() == weight.stride()
    assert torch.equal(restored, weight)


def test_a_channels_last_checkpoint_fills_a_contiguous_target_and_the_other_way(ckpt):
    values = torch.randn(4, 3, 5, 5)
    plain, last = values.clone(), values.contiguous(memory_format=torch.channels_last)
    ckpt.save({"a": last, "b": plain})
    target = {"a": torch.zeros_like(plain), "b": torch.zeros_like(last)}
    ckpt.restore(into=target)
    assert torch.equal(target["a"], values)
    assert torch.equal(target["b"], values)
    assert target["b"].is_contiguous(memory_format=torch.channels_last)


def test_conjugate_and_negative_views_are_resolved(ckpt):
    z = random_bits(torch.complex64, (5,)).nan_to_num()
    state = {"conj": z.conj(), "imag of conj": z.conj().imag, "0-d": z[0].conj()}
    assert state["conj"].is_conj()
    assert state["imag of conj"].is_neg()
    ckpt.save(state)
    assert_same(state, ckpt.restore())
    assert not ckpt.restore()["conj"].is_conj()


def test_a_conjugate_target_is_refused_rather_than_filled_wrongly(ckpt):
    base = torch.zeros(3, dtype=torch.complex64)
    ckpt.save({"z": torch.full((3,), 1 + 2j)})
    with pytest.raises(ds.MismatchError, match="conjugate"):
        ckpt.restore(into={"z": base.conj()})
    assert not base.any()


# Gradients, parameters.


def test_parameters_come_back_as_parameters(ckpt):
    state = {
        "trained": nn.Parameter(torch.randn(3)),
        "frozen": nn.Parameter(torch.randn(3), requires_grad=False),
        "integers": nn.Parameter(torch.arange(3), requires_grad=False),
        "leaf": torch.randn(3, requires_grad=True),
        "buffer": nn.Buffer(torch.randn(3)),
        "0-d": nn.Parameter(torch.tensor(2.0)),
    }
    ckpt.save(state)
    restored = ckpt.restore()
    assert_same(state, restored)
    restored["trained"].sum().backward()


def test_a_parameter_with_a_gradient_is_saved_without_it(ckpt):
    weight = nn.Parameter(torch.ones(3))
    (weight * 2).sum().backward()
    ckpt.save({"w": weight})
    assert ckpt.restore()["w"].grad is None
    assert weight.grad is not None
    ckpt.restore(into={"w": weight})
    assert torch.equal(weight.grad, torch.full((3,), 2.0))


def test_the_result_of_an_operation_is_saved_as_its_values(ckpt):
    result = torch.ones(3, requires_grad=True) * 2
    ckpt.save({"loss": result})
    restored = ckpt.restore()["loss"]
    assert torch.equal(restored, result)
    assert not restored.requires_grad


def test_filling_a_parameter_in_place_keeps_it_and_its_graph_alive(ckpt):
    weight = nn.Parameter(torch.zeros(3))
    ckpt.save({"w": torch.arange(3.0)})
    assert ckpt.restore(into={"w": weight})["w"] is weight
    (weight**2).sum().backward()
    assert torch.equal(weight.grad, torch.tensor([0.0, 2.0, 4.0]))


# Meta, sparse.


def test_meta_tensors_come_back_without_memory(ckpt):
    """Case 7: address 0 makes no aliases."""
    state = {
        "a": torch.empty(1 << 40, device="meta"),
        "b": torch.empty(1 << 40, device="meta"),
        "t": torch.empty(3, 5, device="meta").t(),
        "p": nn.Parameter(torch.empty(3, device="meta")),
    }
    ckpt.save(state)
    restored = ckpt.restore()
    assert_same(state, restored)
    assert restored["a"] is not restored["b"]
    assert restored["t"].stride() == (1, 5)


def test_a_meta_target_is_reported(ckpt):
    ckpt.save({"a": torch.ones(3)})
    with pytest.raises(ds.MismatchError, match="meta"):
        ckpt.restore(into={"a": torch.empty(3, device="meta")})


def sparse_tensors():
    dense = torch.tensor([[0.0, 1.5, 0.0, 0.0], [2.0, 0.0, 0.0, -0.0], [0.0, 0.0, 3.0, 4.0]])
    dense = torch.cat([dense, dense[:1]])
    twice = torch.sparse_coo_tensor(
        [[0, 0, 1], [1, 1, 2]], [1.0, 2.0, 3.0], (2, 3), check_invariants=True
    )
    return {
        "coo": dense.to_sparse(),
        "hybrid": torch.randn(3, 4, 5).to_sparse(1),
        "uncoalesced": twice,
        "empty": torch.sparse_coo_tensor(torch.empty(2, 0), [], (4, 5), check_invariants=True),
        "parameter": nn.Parameter(dense.to_sparse()),
        "half": dense.to(torch.bfloat16).to_sparse(),
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((2, 2)),
        "bsc": dense.to_sparse_bsc((2, 2)),
    }


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
def test_sparse_tensors_come_back(ckpt):
    state = sparse_tensors()
    ckpt.save(state)
    assert_same(state, ckpt.restore())


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
def test_sparse_tensors_fill_a_target(ckpt):
    """Also one with another number of elements."""
    state = sparse_tensors()
    target = sparse_tensors()
    with torch.no_grad():
        for name in ("coo", "csr", "bsr"):
            target[name] = state[name].clone()
            target[name].values().zero_() if name != "coo" else target[name]._values().zero_()
        target["csc"] = torch.eye(4).to_sparse_csc()
        target["parameter"].zero_()
    before = dict(target)
    ckpt.save(state)
    ckpt.restore(into=target)
    assert_same(state, target)
    assert all(target[name] is before[name] for name in target)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
@pytest.mark.parametrize(
    "target",
    [
        lambda: torch.eye(3),
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).double().to_sparse(),
    ],
)
def test_a_sparse_tensor_does_not_fill_what_it_does_not_fit(ckpt, target):
    into = {"s": target()}
    ckpt.save({"s": torch.zeros(3, 3).fill_diagonal_(5).to_sparse()})
    with pytest.raises(ds.MismatchError, match="sparse_coo"):
        ckpt.restore(into=into)
    assert_same({"s": target()}, into)


def test_a_complex32_tensor_fills_its_target_in_place(ckpt):
    saved = random_bits(torch.complex32, (3, 4))
    base = torch.zeros(6, 4, dtype=torch.complex32)
    ckpt.save({"z": saved.t().contiguous().t()})
    ckpt.restore(into={"z": base[::2]})
    assert tensor_bits(base[::2]) == tensor_bits(saved)
    for other in (torch.zeros(4, 3, dtype=torch.complex32), torch.zeros(3, 4)):
        with pytest.raises(ds.MismatchError):
            ckpt.restore(into={"z": other})


# What cannot be stored is refused by name.


class Marked(torch.Tensor):
    pass


REFUSED = {
    "a subclass": lambda: torch.ones(3).as_subclass(Marked),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "lazy": lambda: nn.LazyLinear(3).weight,
    "mkldnn": lambda: torch.ones(3).to_mkldnn(),
    "packed bits": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
}


@pytest.mark.filterwarnings("ignore:.*(nested tensors|quantize).*")
@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_that_cannot_be_stored_exactly_is_refused_by_name(ckpt, name):
    with pytest.raises(ds.UnsupportedValueError, match=r"cannot save model/0/w") as refused:
        ckpt.save_async({"model": [{"w": REFUSED[name]()}]})
    assert refused.value.key == "model/0/w"
    assert ckpt.steps() == []


def test_a_target_of_a_tensor_subclass_is_not_filled_behind_its_back(ckpt):
    target = torch.zeros(3).as_subclass(Marked)
    ckpt.save({"w": torch.ones(3)})
    with pytest.raises(ds.MismatchError, match="Marked"):
        ckpt.restore(into={"w": target})
    assert not target.any()


# Devices: the same code runs for any device, so the host stands in for one here.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["channels_last", "transposed", "every second"])
def test_what_reads_and_fills_device_memory_keeps_every_bit(dtype, name):
    source = views(random_bits(dtype, (2, 2, 3, 4)))[name]
    target = views(random_bits(dtype, (2, 2, 3, 4), seed=1))[name]
    reader, sink, size = (
        DeviceSource(source, source.untyped_storage()),
        DeviceSink(target),
        source.element_size(),
    )
    assert sink.nbytes == source.nbytes
    for first, last in ((7, source.numel()), (0, 5), (5, 7)):
        block = np.empty((last - first) * size, np.uint8)
        reader.read(first * size, block)
        sink.write(first * size, block)
    assert tensor_bits(target) == tensor_bits(source)


def test_a_contiguous_device_tensor_is_filled_in_runs():
    source, target = torch.randn(3, 4), torch.zeros(3, 4)
    block = np.empty(24, np.uint8)
    DeviceSource(source, source.untyped_storage()).read(8, block)
    DeviceSink(target).write(8, block)
    assert torch.equal(target.view(-1)[2:8], source.view(-1)[2:8])
    assert not target.view(-1)[8:].any()
