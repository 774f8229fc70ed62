"""Random number generators go on where they were."""

import random

import numpy as np
import pytest
import torch

import datastates as ds


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
