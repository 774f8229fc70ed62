"""For a machine with a GPU: is a lazy save exact there, how fast are its copies, what does it cost?

`python benchmarks/gpu_check.py [--gib 4] [--steps 20]`, a few minutes. Three checks:

1. *exact*: AdamW (fused) steps run right behind each fence, and every published step is compared
   with clones that were taken on the device before the call;
2. *D2H rate*: bytes of a save over the seconds until it is staged, as a ratio to one plain copy of
   the same bytes into pinned memory, in pairs;
3. *stall*: host seconds in `save_async` and at the fence, and step time with a save in each step
   over step time without, in pairs.

Prints a table and writes `results/gpu_check.json`. Without CUDA it says so, and ends with 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from machine import facts

import datastates as ds

RESULTS = Path(__file__).parent / "results" / "gpu_check.json"
GIB = 1 << 30


def make_state(gib: float) -> dict[str, Any]:
    """Return a model of layers of 64 MiB, and thousands of small tensors, with its optimizer."""
    layers = max(1, round(gib / 3 * GIB / (64 << 20)))  # AdamW keeps two more of each
    large = [torch.nn.Linear(4096, 4096, bias=False) for _ in range(layers)]
    small = [torch.nn.LayerNorm(256) for _ in range(1000)]
    model = torch.nn.ModuleList([*large, *small]).cuda()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return {"model": model, "optim": optim}


def train_step(state: dict[str, Any], x: torch.Tensor) -> None:
    """Run some forward and backward, then an update of every parameter."""
    for layer in state["model"]:
        width = layer.weight.shape[-1]
        layer(x[:, :width]).square().mean().backward()
    state["optim"].step()
    state["optim"].zero_grad()


def tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    """Return all that training changes, in a fixed order."""
    held = [v for s in state["optim"].state.values() for v in s.values()]
    return [*state["model"].parameters(), *held]


def check_exact(ckpt: ds.Checkpointer, state: dict[str, Any], x: torch.Tensor, steps: int) -> int:
    """Save in each step while the optimizer runs behind the fence; return how many were exact."""
    exact = 0
    for step in range(steps):
        before = [tensor.detach().clone() for tensor in tensors(state)]
        save = ckpt.save_async(state, step=step)
        train_step(state, x)
        save.result(600)
        after = [tensor.detach().clone() for tensor in tensors(state)]
        ckpt.restore(into=state, step=step)
        same = all(torch.equal(a, b) for a, b in zip(before, tensors(state), strict=True))
        exact += same
        with torch.no_grad():
            for tensor, value in zip(tensors(state), after, strict=True):
                tensor.copy_(value)
    return exact


def plain_copy_s(state: dict[str, Any]) -> float:
    """Return the seconds of one copy of as many bytes into pinned memory, 256 MiB at a time."""
    nbytes = sum(tensor.nbytes for tensor in tensors(state))
    source = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    torch.cuda.synchronize()
    started = perf_counter()
    for _ in range(max(1, nbytes // len(source))):
        host.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return (perf_counter() - started) * nbytes / (max(1, nbytes // len(source)) * len(source))


def timed_step(state: dict[str, Any], x: torch.Tensor) -> float:
    """Return the seconds of a step, the device's work included."""
    torch.cuda.synchronize()
    started = perf_counter()
    train_step(state, x)
    torch.cuda.synchronize()
    return perf_counter() - started


def measure(ckpt: ds.Checkpointer, state: dict[str, Any], x: torch.Tensor, rounds: int) -> Any:
    """Return rate and stall of saves, each paired with what they are compared to."""
    rates, stalls, slowdowns = [], [], []
    for step in range(1000, 1000 + rounds):
        alone, plain = timed_step(state, x), plain_copy_s(state)
        torch.cuda.synchronize()
        started = perf_counter()
        save = ckpt.save_async(state, step=step)
        train_step(state, x)
        torch.cuda.synchronize()
        with_save = perf_counter() - started
        stats = save.result(600)
        rates.append(plain / ((stats.staged_s or 0) - (stats.planned_s or 0)))
        stalls.append(stats.stalled_s + stats.fenced_s)
        slowdowns.append(alone / with_save)
    return {
        "d2h_of_pinned_copy": {"median": median(rates), "all": rates},
        "stall_s": {"median": median(stalls), "all": stalls},
        "training_speed_with_save": {"median": median(slowdowns), "all": slowdowns},
    }


def main() -> int:
    """Run the checks; 1 where a step was not exact, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=4.0, help="size of the state")
    parser.add_argument("--steps", type=int, default=20, help="steps to compare bit for bit")
    parser.add_argument("--out", type=Path, default=Path("gpu-check-run"))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked")
        return 2
    state = make_state(args.gib)
    x = torch.randn(2048, 4096, device="cuda")
    train_step(state, x)
    arena = int(2.5 * args.gib * GIB)
    with ds.Checkpointer(args.out, keep_last=2, arena_nbytes=arena) as ckpt:
        ckpt.guard(state["optim"])
        exact = check_exact(ckpt, state, x, args.steps)
        found = {"gpu": torch.cuda.get_device_name(), "machine": facts(args.out)}
        found |= {"steps": args.steps, "exact": exact, **measure(ckpt, state, x, 7)}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0 if exact == args.steps else 1


if __name__ == "__main__":
    sys.exit(main())
