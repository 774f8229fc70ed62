"""Modules, optimizers, schedulers and generators resume exactly where they were."""

import copy
import io
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from support import assert_same
from torch import nn
from torch.optim import lr_scheduler as sched
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import datastates as ds


@pytest.fixture(autouse=True)
def _one_thread():
    """Several threads on such small models only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8, 3)
    )


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


def train(net, optimizer, steps, closure=False):
    for _ in range(steps):
        x = torch.randn(6, 1, 4, 4)
        y = torch.randint(3, (6,))

        def loss(x=x, y=y):
            optimizer.zero_grad()
            found = nn.functional.cross_entropy(net(x), y)
            found.backward()
            return found

        optimizer.step(loss) if closure else (loss(), optimizer.step())


def state_of(*parts):
    return [copy.deepcopy(part.state_dict()) for part in parts]


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


# Optimizers.


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "Adam amsgrad foreach": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "Adam capturable": lambda p: torch.optim.Adam(p, torch.tensor(0.01), capturable=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": lambda p: torch.optim.NAdam(p, decoupled_weight_decay=True),
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
    "Adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("stepped", [False, True], ids=["fresh", "stepped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(memory_ckpt, name, stepped):
    """Cases 13 and 65: into an optimizer that has not stepped, and into one that has."""
    closure = name == "LBFGS"
    torch.manual_seed(0)
    net = small()
    optimizer = OPTIMIZERS[name](net.parameters())
    train(net, optimizer, 3, closure)
    memory_ckpt.save({"net": net, "optim": optimizer, "rng": ds.RNG()})
    train(net, optimizer, 2, closure)
    torch.manual_seed(99)
    other = small()
    again = OPTIMIZERS[name](other.parameters())
    if stepped:
        train(other, again, 5, closure)
    memory_ckpt.restore(into={"net": other, "optim": again, "rng": ds.RNG()})
    train(other, again, 2, closure)
    assert_same(state_of(net, optimizer), state_of(other, again))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_state_dict_can_be_loaded_as_it_is(ckpt, name):
    """Case 13: int keys, None, tuples."""
    torch.manual_seed(0)
    net = small()
    optimizer = OPTIMIZERS[name](net.parameters())
    train(net, optimizer, 2, name == "LBFGS")
    ckpt.save({"optim": optimizer, "given": optimizer.state_dict()})
    restored = ckpt.restore()
    assert_same(optimizer.state_dict(), restored["optim"])
    assert_same(optimizer.state_dict(), restored["given"])
    again = OPTIMIZERS[name](net.parameters())
    again.load_state_dict(restored["optim"])
    assert_same(optimizer.state_dict(), again.state_dict())


def test_every_group_keeps_every_setting_in_order(ckpt):
    """Case 16: equal groups, an empty one, a scheduler that has changed the rates."""
    params = [nn.Parameter(torch.randn(2)) for _ in range(4)]
    groups = [
        {"params": params[:1], "lr": 0.1, "name": "first"},
        {"params": params[1:2], "lr": 0.2},
        {"params": params[2:], "lr": 0.2},
        {"params": [], "lr": 0.3, "weight_decay": 0.5},
    ]
    optimizer = torch.optim.AdamW(groups)
    scheduler = sched.ExponentialLR(optimizer, 0.5)
    sum(p.sum() for p in params).backward()
    optimizer.step(), scheduler.step()
    ckpt.save({"optim": optimizer})
    fresh = torch.optim.AdamW([{"params": g["params"]} for g in groups])
    ckpt.restore(into={"optim": fresh})
    assert_same(optimizer.state_dict(), fresh.state_dict())
    assert [g["lr"] for g in fresh.param_groups] == [0.05, 0.1, 0.1, 0.15]


def unused_and_frozen():
    """One parameter never gets a gradient, one is frozen after some steps."""
    net = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("used", "unused", "frozen")})
    return net, torch.optim.Adam(net.parameters(), 0.1)


def step(net, optimizer, *names):
    optimizer.zero_grad(set_to_none=True)
    sum(net[name](torch.ones(1, 2)).sum() for name in names).backward()
    optimizer.step()


def test_parameters_without_optimizer_state_have_none_after_the_restore(ckpt):
    """Case 17: exactly the saved entries, also where the target has more."""
    torch.manual_seed(0)
    net, optimizer = unused_and_frozen()
    step(net, optimizer, "used", "frozen")
    net["frozen"].requires_grad_(False)
    step(net, optimizer, "used")
    ckpt.save({"net": net, "optim": optimizer})
    for names in ((), ("used",), ("used", "unused", "frozen")):
        fresh, other = unused_and_frozen()
        if names:
            step(fresh, other, *names)
        ckpt.restore(into={"net": fresh, "optim": other})
        assert_same(optimizer.state_dict(), other.state_dict())
        step(fresh, other, "used")
    step(net, optimizer, "used")
    assert_same(state_of(net, optimizer), state_of(fresh, other))


RESUME = """
    import sys, torch, datastates as ds
    torch.manual_seed(0)
    net = torch.nn.ModuleDict({n: torch.nn.Linear(2, 2) for n in ("used", "unused")})
    net["unused"].requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    state = {"net": net, "optim": optimizer}
    ckpt = ds.Checkpointer(sys.argv[1])
    if ckpt.latest() is not None:
        ckpt.restore(into=state)
    for _ in range(3):
        optimizer.zero_grad()
        net["used"](torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
    ckpt.save(state)
    print(net["used"].weight.tolist(), ckpt.latest())
"""


def test_a_new_process_resumes_at_the_first_try(tmp_path):
    """Case 65: a submodule without gradients is in the optimizer."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(RESUME), str(tmp_path / "run")],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert outputs[0].endswith("0\n")
    assert outputs[1].endswith("1\n")
    net = nn.Linear(2, 2)
    torch.manual_seed(0)
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
    assert outputs[1].startswith(str(net.weight.tolist()))


def test_moments_that_are_there_are_filled_in_place(ckpt):
    net, optimizer = unused_and_frozen()
    step(net, optimizer, "used")
    ckpt.save({"optim": optimizer})
    moment = optimizer.state[net["used"].weight]["exp_avg"]
    place = moment.data_ptr()
    moment.zero_()
    ckpt.restore(into={"optim": optimizer})
    assert moment.any()
    assert optimizer.state[net["used"].weight]["exp_avg"].data_ptr() == place


def test_an_optimizer_with_other_groups_is_refused_by_name(ckpt):
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    ckpt.save({"optim": torch.optim.Adam([{"params": params[:1]}, {"params": params[1:]}])})
    with pytest.raises(ds.MismatchError, match=r"cannot restore optim: Adam refuses: .*groups"):
        ckpt.restore(into={"optim": torch.optim.Adam(params)})
    assert ckpt.recovery is None


# Schedulers, scalers, averages.


SCHEDULERS = {
    "StepLR": lambda o: sched.StepLR(o, 2),
    "MultiStepLR": lambda o: sched.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: sched.ConstantLR(o, 0.5, 3),
    "LinearLR": sched.LinearLR,
    "ExponentialLR": lambda o: sched.ExponentialLR(o, 0.9),
    "PolynomialLR": sched.PolynomialLR,
    "CosineAnnealingLR": lambda o: sched.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: sched.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: sched.CyclicLR(o, 0.01, 0.1, mode="triangular2"),
    "OneCycleLR": lambda o: sched.OneCycleLR(o, 0.1, total_steps=20),
    "LambdaLR": lambda o: sched.LambdaLR(o, lambda n: 0.9**n),
    "MultiplicativeLR": lambda o: sched.MultiplicativeLR(o, lambda n: 0.9),
    "ReduceLROnPlateau": lambda o: sched.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: sched.SequentialLR(
        o, [sched.LinearLR(o, total_iters=2), sched.CosineAnnealingLR(o, 8)], [2]
    ),
    "ChainedScheduler": lambda o: sched.ChainedScheduler(
        [sched.ConstantLR(o, 0.5, 2), sched.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: SWALR(o, 0.05, anneal_epochs=4),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*optimizer.step:UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on_where_they_were(memory_ckpt, name):
    def made():
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer)

    def go_on(optimizer, scheduler, steps):
        for i in range(steps):
            optimizer.step()
            scheduler.step(*([1.0 + i] if name == "ReduceLROnPlateau" else []))

    optimizer, scheduler = made()
    go_on(optimizer, scheduler, 3)
    memory_ckpt.save({"optim": optimizer, "sched": scheduler})
    other, again = made()
    memory_ckpt.restore(into={"optim": other, "sched": again})
    for _ in range(5):
        assert_same(state_of(optimizer, scheduler), state_of(other, again))
        go_on(optimizer, scheduler, 1), go_on(other, again, 1)


def test_a_scheduler_with_a_callable_object_keeps_the_objects_fields(memory_ckpt):
    class Warmup:
        def __init__(self, steps):
            self.steps = steps

        def __call__(self, step):
            return min(1.0, step / self.steps)

    def made(steps):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
        return sched.LambdaLR(optimizer, Warmup(steps))

    memory_ckpt.save({"sched": made(7)})
    other = made(1)
    memory_ckpt.restore(into={"sched": other})
    assert other.lr_lambdas[0].steps == 7


def test_a_gradient_scaler_comes_back(ckpt):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    for _ in range(3):
        scaler.scale(optimizer.param_groups[0]["params"][0].sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    ckpt.save({"scaler": scaler, "off": torch.amp.GradScaler("cpu", enabled=False)})
    fresh = torch.amp.GradScaler("cpu")
    off = torch.amp.GradScaler("cpu", enabled=False)
    ckpt.restore(into={"scaler": fresh, "off": off})
    assert_same(scaler.state_dict(), fresh.state_dict())
    assert fresh.get_scale() == scaler.get_scale() == 16.0


def test_a_moving_average_of_a_model_comes_back(ckpt):
    net = Net()
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        train(net, optimizer, 1)
        ema.update_parameters(net)
    ckpt.save({"net": net, "ema": ema})
    other = Net()
    fresh = AveragedModel(other, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    ckpt.restore(into={"net": other, "ema": fresh})
    assert_same(state_of(net, ema), state_of(other, fresh))
    assert fresh.n_averaged == 3


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


# Random numbers.


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1)


def test_all_generators_of_the_process_go_on_where_they_were(ckpt):
    random.gauss(0, 1)  # leaves a second number behind, which is state, too
    np.random.randn()
    ckpt.save({"rng": ds.RNG()})
    expected = [draw() for _ in range(3)]
    ckpt.restore(into={"rng": ds.RNG()})
    assert [draw() for _ in range(3)] == expected


def test_the_states_can_be_had_without_being_set(ckpt):
    ckpt.save({"rng": ds.RNG()})
    expected = draw()
    states = ckpt.restore()["rng"]
    assert draw() != expected
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    assert draw() == expected


def test_a_mismatch_elsewhere_leaves_the_generators_alone(ckpt):
    ckpt.save({"rng": ds.RNG(), "t": torch.ones(2)})
    draw()
    before = random.getstate()
    with pytest.raises(ds.MismatchError):
        ckpt.restore(into={"rng": ds.RNG(), "t": torch.ones(3)})
    assert random.getstate() == before


GENERATORS = {
    "python": lambda: random.Random(1),
    "torch": lambda: torch.Generator().manual_seed(1),
    "legacy": lambda: np.random.RandomState(1),
    **{
        name: lambda name=name: np.random.Generator(getattr(np.random, name)(1))
        for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    },
}


def number(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return generator.random()


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_of_ones_own_goes_on_where_it_was(ckpt, name):
    generator = GENERATORS[name]()
    number(generator)
    if isinstance(generator, np.random.Generator):
        generator.integers(0, 2**31, dtype=np.uint32)  # leaves half a draw behind
    ckpt.save({"g": generator})
    expected = [number(generator) for _ in range(3)]
    made = ckpt.restore()["g"]
    assert type(made) is type(generator)
    assert [number(made) for _ in range(3)] == expected
    target = GENERATORS[name]()
    assert ckpt.restore(into={"g": target})["g"] is target
    assert [number(target) for _ in range(3)] == expected


def test_a_numpy_generator_spawns_the_children_it_would_have(ckpt):
    """The seeds are not in numpy's own state."""
    generator = np.random.default_rng([1, 2, 3])
    generator.spawn(2)
    ckpt.save({"g": generator})
    expected = generator.spawn(1)[0].random()
    target = np.random.default_rng(9)
    ckpt.restore(into={"g": target})
    assert target.spawn(1)[0].random() == expected
    assert ckpt.restore()["g"].spawn(1)[0].random() == expected


def test_a_generator_of_another_kind_is_refused_by_name(ckpt):
    ckpt.save({"g": np.random.default_rng(1)})
    with pytest.raises(ds.MismatchError, match=r"g \(Random here"):
        ckpt.restore(into={"g": random.Random(1)})
    with pytest.raises(ds.MismatchError, match="cannot restore g: its generator state is refused"):
        ckpt.restore(into={"g": np.random.Generator(np.random.MT19937(1))})
