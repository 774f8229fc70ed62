"""Names that share memory are stored once and share it again, as of the moment of the call."""

import pytest
import torch
from support import assert_same, views
from torch import nn

import datastates as ds


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
