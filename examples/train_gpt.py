"""Train a small GPT on the source code of Python's standard library, with checkpoints.

The part about checkpoints is in `train`: name the state once, restore if there is something to
restore, save every few steps. All else here is an ordinary training script: a byte-level GPT
(5 million parameters; 61 MB of state with AdamW's), dropout, warm-up and cosine decay.

What makes a resumed run equal to an uninterrupted one is that *everything* the next step depends
on is in the state: besides weights and optimizer also the scheduler, the random generators (the
dropout masks), the generator that draws the batches, and the step.
"""

import argparse
import json
import math
import random
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn

import datastates as ds

WIDTH, LAYERS, HEADS, CONTEXT, DROPOUT = 320, 4, 5, 32, 0.1
VOCABULARY = 256  # bytes
PEAK_LR, WARMUP_STEPS, WEIGHT_DECAY = 6e-4, 20, 0.1
THREADS = 1  # fixed: another number of threads adds in another order, and rounds otherwise


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        dropout = DROPOUT if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return F.dropout(self.proj(y.transpose(1, 2).flatten(2)), DROPOUT, self.training)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(DROPOUT),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        mlp: Tensor = self.mlp(self.ln_2(x))
        return x + mlp


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight  # tied: stored once, tied again on restore
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next byte, in nats."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load_text() -> Tensor:
    """Return the source of the standard library's top-level modules as one tensor of bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(
        bytearray(b"\n".join(file.read_bytes() for file in files)), dtype=torch.uint8
    )


def draw_batch(text: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (size, 1), generator=generator)
    window = text[starts + torch.arange(CONTEXT + 1)].long()
    return window[:, :-1], window[:, 1:]


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices, and none on biases and norms."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95))


def lr_factor(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: linear warm-up, then a cosine down to 0.1."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def train_step(state: dict[str, Any], batch: tuple[Tensor, Tensor]) -> float:
    loss: Tensor = state["model"](*batch)
    state["optim"].zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(state["model"].parameters(), 1.0)
    state["optim"].step()
    state["sched"].step()
    return loss.item()


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_state(steps: int, seed: int = 0) -> dict[str, Any]:
    """Return all that training changes; each part is saved, and restored in place."""
    seed_all(seed)
    model = GPT()
    optim = make_optimizer(model)
    return {
        "model": model,
        "optim": optim,
        "sched": torch.optim.lr_scheduler.LambdaLR(optim, lambda step: lr_factor(step, steps)),
        "rng": ds.RNG(),  # the global generators of torch, numpy and Python
        "data": torch.Generator().manual_seed(seed + 1),
        "step": 0,
    }


def train(out: Path, steps: int, save_every: int, batch: int, losses: Path) -> None:
    text = load_text()
    state = make_state(steps)
    with ds.Checkpointer(out, keep_last=3) as ckpt, losses.open("a") as log:
        ckpt.guard(state["optim"])  # copied under the next step's forward and backward
        if ckpt.latest() is not None:
            ckpt.restore(into=state)
            print(f"resumed from step {state['step']}")
        for step in range(state["step"] + 1, steps + 1):
            loss = train_step(state, draw_batch(text, batch, state["data"]))
            state["step"] = step
            print(
                json.dumps({"step": step, "loss": loss, "time": time.time()}), file=log, flush=True
            )
            if step % save_every == 0:
                ckpt.save_async(state, step=step, metrics={"loss": loss})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoints")
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--save-every", type=int, default=15, metavar="STEPS")
    parser.add_argument("--batch", type=int, default=16, help="sequences per step")
    parser.add_argument(
        "--losses", type=Path, required=True, help="append a JSON line per step here"
    )
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    train(args.out, args.steps, args.save_every, args.batch, args.losses)


if __name__ == "__main__":
    main()
