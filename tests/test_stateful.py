"""Modules, optimizers, schedulers and generators resume exactly where they were."""

import io

import numpy as np
import pytest
import torch
from support import assert_same, state_of, train
from torch import nn

import datastates as ds


@pytest.fixture(autouse=True)
def _one_thread():
    """Several threads on such small models only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """A bit of everything: norms, recurrence, buffers of both kinds, extra state."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(16, 5, num_layers=2, bidirectional=True)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(10, 3))
        self.old = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("nothing", None)
        self.history = []

    def forward(self, x):
        self.seen += len(x)
        self.history.append(float(x.mean()))
        x = self.drop(self.norm(self.conv(x))).mean(1).flatten(1)
        x, _ = self.lstm(x.unsqueeze(0))
        return self.old(self.head(x[0]))

    def get_extra_state(self):
        return {"history": list(self.history), "version": (1, 2)}

    def set_extra_state(self, state):
        self.history = state["history"]


# Modules.


def test_a_module_comes_back_with_buffers_extra_state_and_versions(ckpt):
    torch.manual_seed(0)
    net = Net()
    train(net, torch.optim.SGD(net.parameters(), 0.1), 3)
    ckpt.save({"net": net})
    fresh = Net()
    ckpt.restore(into={"net": fresh})
    assert_same(net.state_dict(), fresh.state_dict())
    assert fresh.history == net.history
    assert fresh.state_dict()._metadata == net.state_dict()._metadata
    x = torch.randn(6, 1, 4, 4)
    torch.manual_seed(1)
    expected = net(x)
    torch.manual_seed(1)
    assert torch.equal(fresh(x), expected)


def test_without_a_target_a_module_comes_back_as_its_state_dict(ckpt):
    net = Net()
    ckpt.save({"net": net, "given as a dict": net.state_dict()})
    restored = ckpt.restore()
    for found in restored.values():
        assert_same(net.state_dict(), found)
        assert found._metadata == net.state_dict()._metadata
        Net().load_state_dict(found)


def test_a_state_dict_is_restored_into_a_plain_dict_of_the_same_tensors(ckpt):
    """Filled in place, so that the module it was taken from has the values."""
    net, fresh = nn.Linear(3, 2), nn.Linear(3, 2)
    ckpt.save({"net": net.state_dict()})
    into = {"net": dict(fresh.state_dict())}
    assert ckpt.restore(into=into) is into
    assert_same(net.state_dict(), fresh.state_dict())


def test_parameters_stay_where_they_are(ckpt):
    """In place: nothing that holds them, such as an optimizer, has to be made again."""
    net = Net()
    places = {
        name: t.data_ptr() for name, t in net.state_dict(keep_vars=True).items() if "_e" not in name
    }
    ckpt.save({"net": Net()})
    ckpt.restore(into={"net": net})
    now = net.state_dict(keep_vars=True)
    assert {name: now[name].data_ptr() for name in places} == places


def test_flat_lstm_weights_stay_flat_and_work(ckpt):
    """Each weight is a view of one buffer; they are filled there."""
    lstm, fresh = nn.LSTM(3, 4), nn.LSTM(3, 4)
    ckpt.save(lstm)
    ckpt.restore(into=fresh)
    x = torch.randn(2, 1, 3)
    assert torch.equal(fresh(x)[0], lstm(x)[0])


def test_a_module_saves_no_gradients_and_restores_with_them_in_place(ckpt):
    net = nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    grad = net.weight.grad.clone()
    ckpt.save(net)
    ckpt.restore(into=net)
    assert torch.equal(net.weight.grad, grad)


def test_what_is_restored_can_still_be_resized(ckpt):
    """Reading or filling a tensor through numpy would have fixed its storage's size."""
    net = nn.Linear(4, 4)
    ckpt.save(net)
    ckpt.restore(into=net)
    with torch.no_grad():
        net.weight.untyped_storage().resize_(0)
        net.weight.untyped_storage().resize_(64)


def test_the_same_module_under_two_names_is_stored_once(ckpt):
    net = nn.Linear(30, 30)
    ckpt.save({"model": net, "best": net})
    assert ckpt.info().nbytes == sum(t.nbytes for t in net.state_dict().values())
    fresh, best = nn.Linear(30, 30), nn.Linear(30, 30)
    ckpt.restore(into={"model": fresh, "best": best})
    assert_same(net.state_dict(), fresh.state_dict())
    assert_same(net.state_dict(), best.state_dict())


def test_a_lazy_module_takes_the_shapes_of_the_checkpoint(ckpt):
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    net(torch.randn(4, 3))
    ckpt.save(net)
    fresh = nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d())
    ckpt.restore(into=fresh)
    assert_same(net.state_dict(), fresh.state_dict())
    net.eval(), fresh.eval()
    x = torch.randn(2, 3)
    assert torch.equal(fresh(x), net(x))


def test_a_lazy_module_that_has_no_shapes_yet_is_refused_by_name(ckpt):
    with pytest.raises(ds.UnsupportedValueError, match=r"cannot save net/weight: .*Uninitialized"):
        ckpt.save_async({"net": nn.LazyLinear(3)})


def test_a_module_without_anything_comes_back(ckpt):
    ckpt.save({"a": nn.ReLU(), "b": nn.Sequential()})
    ckpt.restore(into={"a": nn.ReLU(), "b": nn.Sequential()})
    assert_same({"a": nn.ReLU().state_dict(), "b": nn.Sequential().state_dict()}, ckpt.restore())


class WithBytes(nn.Module):
    """As modules of low-precision libraries do it."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = torch.tensor(scale)

    def get_extra_state(self):
        buffer = io.BytesIO()
        torch.save(self.scale, buffer)
        return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state):
        self.scale = torch.load(io.BytesIO(state.numpy().tobytes()))


def test_extra_state_that_is_a_tensor_comes_back(ckpt):
    module = WithBytes(3.5)
    ckpt.save(module)
    fresh = WithBytes()
    ckpt.restore(into=fresh)
    assert fresh.scale == 3.5


def test_hooks_of_a_state_dict_are_its_own_business(ckpt):
    net, fresh = nn.Linear(2, 2), nn.Linear(2, 2)
    for module in (net, fresh):
        module.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update(tag="v1"))
    seen = []
    fresh.register_load_state_dict_pre_hook(lambda m, state, *rest: seen.append(state.pop("tag")))
    ckpt.save(net)
    ckpt.restore(into=fresh)
    assert seen == ["v1"]
    assert torch.equal(fresh.weight, net.weight)


# Whatever has the two methods.


class Loader:
    """A data loader's position, as a user writes it."""

    def __init__(self):
        self.position, self.order = 0, np.arange(10)

    def state_dict(self):
        return {"position": self.position, "order": self.order}

    def load_state_dict(self, state):
        self.position, self.order = state["position"], state["order"]


class Counter:
    """Its state is no dict at all."""

    def __init__(self, n=0):
        self.n = n

    def state_dict(self):
        return (self.n, [self.n] * self.n)

    def load_state_dict(self, state):
        assert type(state) is tuple
        self.n = state[0]


class Broken(Loader):
    def state_dict(self):
        raise KeyError("not ready")


def test_an_object_with_the_two_methods_comes_back(ckpt):
    loader = Loader()
    loader.position, loader.order = 7, np.random.permutation(10)
    ckpt.save({"data": loader, "count": Counter(3), "many": [Counter(1), (Counter(2),)]})
    fresh, count, many = Loader(), Counter(), [Counter(), (Counter(),)]
    order = fresh.order
    ckpt.restore(into={"data": fresh, "count": count, "many": many})
    assert (fresh.position, count.n, many[0].n, many[1][0].n) == (7, 3, 1, 2)
    assert fresh.order is order
    assert np.array_equal(order, loader.order)
    assert ckpt.restore()["count"] == (3, [3, 3, 3])


def test_an_object_whose_state_dict_fails_at_the_restore_is_no_damage(ckpt):
    """The step is whole; an older one would be no better."""
    ckpt.save({"data": Loader()}, step=1)
    ckpt.save({"data": Loader()}, step=2)
    with pytest.raises(ds.MismatchError, match=r"data: Broken refuses: KeyError.*not ready"):
        ckpt.restore(into={"data": Broken()})


def test_a_module_is_not_filled_from_a_plain_dict_nor_a_tensor_from_a_module(ckpt):
    net = nn.Linear(2, 2)
    ckpt.save({"a": dict(net.state_dict()), "b": net})
    fresh = nn.Linear(2, 2)
    kept = state_of(fresh)
    tensor = torch.zeros(2)
    with pytest.raises(ds.MismatchError) as caught:
        ckpt.restore(into={"a": fresh, "b": tensor})
    assert len(caught.value.mismatched) == 2
    assert_same(kept, state_of(fresh))
    assert not tensor.any()
