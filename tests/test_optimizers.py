"""Optimizers, schedulers, scalers and averages: training goes on bit for bit."""

import subprocess
import sys
import textwrap

import pytest
import torch
from support import assert_same, state_of, train
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
    net = small()
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        train(net, optimizer, 1)
        ema.update_parameters(net)
    ckpt.save({"net": net, "ema": ema})
    other = small()
    fresh = AveragedModel(other, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    ckpt.restore(into={"net": other, "ema": fresh})
    assert_same(state_of(net, ema), state_of(other, fresh))
    assert fresh.n_averaged == 3
