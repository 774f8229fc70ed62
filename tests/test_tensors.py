"""Tensors come back as they were: bits, dtype, shape, strides, ties, gradients."""

import numpy as np
import pytest
import torch
from support import assert_same, tensor_bits
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


def random_bits(dtype, shape, seed=0):
    """A tensor of any bit patterns at all: NaNs of every payload, denormals, both zeros."""
    made = torch.zeros(shape, dtype=dtype)
    raw = np.random.default_rng(seed).integers(0, 256, made.nbytes, dtype=np.uint8)
    if dtype is torch.bool:
        raw &= 1
    if made.numel():
        made.view(-1).view(torch.uint8).copy_(torch.from_numpy(raw))
    return made


def views(base):
    """Views of a four-dimensional tensor with every kind of strides."""
    return {
        "transposed": base.transpose(0, 3),
        "permuted": base.permute(2, 0, 3, 1),
        "every second": base[:, ::2],
        "column": base[:, :, :, 1],
        "expanded": base[:1].expand(5, -1, -1, -1),
        "expanded within": base[:, :1].expand(-1, 4, -1, -1),
        "overlapping": base.reshape(-1).unfold(0, 4, 1),
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "sliced in the middle": base[1:, 1:2, :, 2:],
    }


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


# Ties.


def test_a_tied_weight_is_stored_once(disk_ckpt):
    """Case 2: 8 MB under two names are 8 MB on disk, and one memory after the restore."""
    t = torch.randn(2_000_000)
    disk_ckpt.save({"a": t, "b": t, "view": t.view(1_000, 2_000), "part": t[500:1_000]})
    assert disk_ckpt.info().nbytes == t.nbytes
    restored = disk_ckpt.restore()
    assert_same({"a": t, "b": t, "view": t.view(1_000, 2_000), "part": t[500:1_000]}, restored)
    restored["a"][500] = 7.0
    assert restored["b"][500] == restored["view"][0, 500] == restored["part"][0] == 7.0


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(11, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        return self.head(self.body(self.emb(x)))


def train(model, optimizer, steps):
    for i in range(steps):
        logits = model(torch.arange(11).roll(i))
        nn.functional.cross_entropy(logits, torch.arange(11)).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_model_with_a_tied_head_resumes_tied(ckpt):
    """Case 1: both names are equal, one memory, and stay so in training."""
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 3)
    ckpt.save({"model": model, "optim": optimizer})
    fresh = Tied()
    other = torch.optim.AdamW(fresh.parameters(), lr=0.1)
    ckpt.restore(into={"model": fresh, "optim": other})
    assert fresh.head.weight.data_ptr() == fresh.emb.weight.data_ptr()
    assert fresh.head.weight is fresh.emb.weight
    train(model, optimizer, 2)
    train(fresh, other, 2)
    assert_same(model.state_dict(), fresh.state_dict())
    assert torch.equal(fresh.head.weight, fresh.emb.weight)


def test_a_tied_checkpoint_loads_strictly_into_a_tied_module(ckpt):
    """Case 2, the plain way: torch's own strict load of the restored dict."""
    model = Tied()
    ckpt.save(model.state_dict())
    restored = ckpt.restore()
    assert Tied().load_state_dict(restored, strict=True).missing_keys == []
    assert_same(model.state_dict(), restored)


def test_a_tied_checkpoint_fills_an_untied_target(ckpt):
    t = torch.randn(5)
    ckpt.save({"a": t, "b": t})
    target = {"a": torch.zeros(5), "b": torch.zeros(5)}
    ckpt.restore(into=target)
    assert_same({"a": t, "b": t}, target)
    assert target["a"].data_ptr() != target["b"].data_ptr()


def test_an_untied_checkpoint_does_not_fill_a_tied_target_in_any_order(ckpt):
    """Two values for one memory: whichever came last would win."""
    t = torch.full((5,), 7.0)
    ckpt.save({"a": torch.zeros(5), "b": torch.ones(5)})
    with pytest.raises(ds.MismatchError, match=r"b \(shares its memory"):
        ckpt.restore(into={"a": t, "b": t})
    assert torch.equal(t, torch.full((5,), 7.0))
    ckpt.restore(into={"a": t, "b": t}, strict=False)
    assert torch.equal(t, torch.zeros(5))


@pytest.mark.parametrize("name", [n for n in views(torch.zeros(2, 2, 3, 4)) if n != "overlapping"])
def test_a_tied_view_comes_back_under_both_names(ckpt, name):
    """The same strided view twice, and nothing else of its memory."""
    view = views(torch.randn(2, 2, 3, 4))[name]
    ckpt.save({"a": view, "b": view})
    restored = ckpt.restore()
    assert_same({"a": view, "b": view}, restored)
    assert restored["a"].data_ptr() == restored["b"].data_ptr()
    target = {"a": torch.zeros(view.shape), "b": torch.zeros(view.shape)}
    ckpt.restore(into=target)
    assert torch.equal(target["a"], view)
    assert torch.equal(target["b"], view)


def test_a_weight_and_its_transpose_stay_tied(ckpt):
    w = torch.randn(3, 5)
    ckpt.save({"w": w, "wt": w.t(), "diagonal": w[:, :3].diagonal()})
    restored = ckpt.restore()
    assert_same({"w": w, "wt": w.t(), "diagonal": w[:, :3].diagonal()}, restored)
    restored["w"][1, 1] = 9.0
    assert restored["wt"][1, 1] == restored["diagonal"][1] == 9.0


def test_a_weight_and_its_transpose_fill_targets_tied_or_not(ckpt):
    w = torch.randn(3, 5)
    ckpt.save({"w": w, "wt": w.t()})
    tied = torch.zeros(3, 5)
    ckpt.restore(into={"w": tied, "wt": tied.t()})
    assert torch.equal(tied, w)
    apart = {"w": torch.zeros(3, 5), "wt": torch.zeros(5, 3)}
    ckpt.restore(into=apart)
    assert torch.equal(apart["w"], w)
    assert torch.equal(apart["wt"], w.t())


def test_slices_that_touch_are_no_aliases(ckpt):
    """Case 7."""
    base = torch.arange(10.0)
    state = {"a": base[:5], "b": base[5:], "e1": torch.empty(0), "e2": torch.empty(0)}
    ckpt.save(state)
    restored = ckpt.restore()
    assert_same(state, restored)
    restored["a"].zero_()
    assert torch.equal(restored["b"], base[5:])
    assert ckpt.info().nbytes == base.nbytes


def test_slices_that_overlap_in_part_are_each_exact(ckpt):
    base = torch.arange(10.0)
    state = {"a": base[:6], "b": base[4:], "c": base[3:5]}
    ckpt.save(state)
    assert_same(state, ckpt.restore())
    target = torch.zeros(10)
    ckpt.restore(into={"a": target[:6], "b": target[4:], "c": target[3:5]})
    assert torch.equal(target, base)


def test_only_a_views_own_elements_are_stored(disk_ckpt):
    """`torch.save` writes the whole storage of a slice."""
    big = torch.randn(1_000_000)
    disk_ckpt.save({"few": big[10:20]})
    assert disk_ckpt.info().nbytes == 40
    assert_same({"few": big[10:20]}, disk_ckpt.restore())


def test_one_memory_under_two_dtypes_is_stored_for_each(ckpt):
    t = torch.randn(6)
    state = {"f": t, "i": t.view(torch.int32), "b": t.view(torch.uint8)}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


def test_a_scalar_and_the_array_that_holds_it_stay_tied(ckpt):
    t = torch.tensor([3.0])
    ckpt.save({"scalar": t[0], "vector": t})
    restored = ckpt.restore()
    assert_same({"scalar": t[0], "vector": t}, restored)
    restored["vector"][0] = 4.0
    assert restored["scalar"] == 4.0


def test_only_a_tied_name_can_be_asked_for(ckpt):
    """The bytes lie under the other name."""
    t = torch.randn(100)
    ckpt.save({"a": t, "b": t, "c": t[10:20], "d": t.view(10, 10).t()})
    for name in "bcd":
        expected = {"b": t, "c": t[10:20], "d": t.view(10, 10).t()}[name]
        assert_same({name: expected}, ckpt.restore(only=[name]))


# What is saved is what was there at the call.


def test_a_resized_buffer_is_saved_as_it_is_now(ckpt):
    """Case 8."""
    module = nn.Module()
    module.register_buffer("seen", torch.zeros(4))
    ckpt.save(module, step=1)
    x = torch.randn(10)
    module.seen.resize_(10).copy_(x)
    ckpt.save(module, step=2)
    assert_same(x, ckpt.restore()["seen"])
    assert ckpt.restore(step=1)["seen"].shape == (4,)


def test_storage_freed_after_the_call_was_captured(ckpt):
    """Case 9."""
    t = torch.randn(1_000_000)
    kept = t.clone()
    save = ckpt.save_async({"t": t})
    t.untyped_storage().resize_(0)
    save.result(60)
    assert_same({"t": kept}, ckpt.restore())


def test_storage_freed_before_the_call_is_refused_by_name(ckpt):
    """FSDP frees unsharded parameters so; their memory would be read as something else's."""
    t = torch.randn(1_000)
    t.untyped_storage().resize_(0)
    with pytest.raises(
        ds.UnsupportedValueError, match="cannot save model/w: its storage was freed"
    ):
        ckpt.save_async({"model": {"w": t}})


def test_values_changed_after_the_call_are_not_saved(ckpt):
    t = torch.zeros(1_000_000)
    save = ckpt.save_async({"t": t, "list": [t], "scalar": t[0]})
    t.add_(1)
    save.result(60)
    restored = ckpt.restore()
    assert not restored["t"].any()
    assert restored["scalar"] == 0


def test_what_was_restored_does_not_change_with_training(ckpt):
    """Case 24."""
    ckpt.save({"t": torch.zeros(5)})
    first, second = ckpt.restore(), ckpt.restore()
    first["t"].add_(1)
    assert not second["t"].any()
    assert not ckpt.restore()["t"].any()


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
    reader, sink, size = DeviceSource(source), DeviceSink(target), source.element_size()
    assert sink.nbytes == source.nbytes
    for first, last in ((7, source.numel()), (0, 5), (5, 7)):
        block = np.empty((last - first) * size, np.uint8)
        reader.read(first * size, block)
        sink.write(first * size, block)
    assert tensor_bits(target) == tensor_bits(source)


def test_a_contiguous_device_tensor_is_filled_in_runs():
    source, target = torch.randn(3, 4), torch.zeros(3, 4)
    block = np.empty(24, np.uint8)
    DeviceSource(source).read(8, block)
    DeviceSink(target).write(8, block)
    assert torch.equal(target.view(-1)[2:8], source.view(-1)[2:8])
    assert not target.view(-1)[8:].any()
