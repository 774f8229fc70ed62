"""What the simulation is fed with: every figure with its kind and where it is from.

`published`: in the source that is named, which was read. `cited`: attributed to the source, whose
text could not be read when this was written. `measured`: by this repository's benchmarks.
`assumed`: by us, because nothing better was to be had; the results move with these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scale_model import Policy, Rates, Work

Kind = Literal["published", "cited", "measured", "assumed"]
GB = 1e9


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, and why it may be believed."""

    value: float
    unit: str
    kind: Kind
    source: str


_ALCF = "ALCF user guides, Polaris machine overview"
_LUSTRE = "ALCF user guides, data storage: Grand and Eagle"
_NERSC = "NERSC docs, Perlmutter architecture"
_NERSC_FS = "NERSC, Perlmutter: 35 PB all-flash Lustre, more than 5 TB/s"
_MEGATRON = "arXiv 2104.04473"
FIGURES: Mapping[str, Figure] = {
    "copy": Figure(25 * GB, "B/s", "cited", "pinned D2H of an A100: arXiv 2406.10707"),
    "hbm": Figure(1600 * GB, "B/s", "published", f"{_ALCF}: A100, 1.6 TB/s"),
    "gpus_per_node": Figure(4, "", "published", f"{_ALCF}; {_NERSC}: 4 too"),
    "polaris_nics": Figure(2, "", "published", f"{_ALCF}: a pair of Slingshot adapters"),
    "perlmutter_nics": Figure(4, "", "published", f"{_NERSC}: 4 Slingshot 11 NICs"),
    "nic": Figure(
        25 * GB,
        "B/s",
        "assumed",
        "Slingshot 11, 200 Gbit/s; the Polaris page read tells of 10 before its upgrade",
    ),
    "polaris_storage": Figure(650 * GB, "B/s", "published", f"{_LUSTRE}, 650 GB/s"),
    "polaris_osts": Figure(160, "", "published", f"{_LUSTRE}, 160 OSTs"),
    "perlmutter_storage": Figure(5000 * GB, "B/s", "published", _NERSC_FS),
    "state": Figure(14, "B/parameter", "published", f"{_MEGATRON} §5.10: 13.8 TB for 1.008e12"),
    "flops": Figure(140e12, "FLOP/s", "published", f"{_MEGATRON} table 1: 135 to 142 up to 76B"),
    "flop_per_token": Figure(8, "FLOP/parameter", "published", f"{_MEGATRON} eq. 4"),
    "llama_rate": Figure(380, "tokens/s/GPU", "published", "arXiv 2302.13971: 65B on A100-80GB"),
    "tokens": Figure(4096, "tokens/GPU", "assumed", "per iteration; 3,584 in Megatron's 76B row"),
    "llama_tokens": Figure(2048, "tokens/GPU", "assumed", "per iteration: 1M tokens on 512 GPUs"),
    "peer_share": Figure(0.25, "", "assumed", "of a GPU's part of the NICs, beside training"),
    "call": Figure(0.02, "s", "assumed", "planning and small values, in each call"),
    "tail": Figure(0.1, "s", "assumed", "seal and commit"),
    "writers": Figure(4, "threads", "assumed", "of ours, each on a core; others write with one"),
}
NOT_FOUND = (
    "The tables of arXiv 2406.10707 and 2601.16956 (bytes per GPU, iteration times, stalls and "
    "throughput by model) and of 2607.01646: only abstracts and first pages could be read. What "
    "stands in for them: the maxima in the abstracts, and tables of other papers.",
    "Iteration times of those papers: here parameters x tokens x 8 FLOP at 140 TFLOP/s, except "
    "65B, for which LLaMA's rate is known.",
    "GPUs for each model size between 3B on 4 and 70B on 256: our choice.",
    "Write rate of one Lustre client: taken as one OST's part of the whole (650 GB/s / 160), as "
    "for a file on one OST, and without collisions of files on an OST.",
)


def value(name: str) -> float:
    """Return a figure's value."""
    return FIGURES[name].value


@dataclass(frozen=True, slots=True)
class Engine:
    """How a way of saving used the disk here, by `bench_local.py`."""

    ratio_to_raw: float
    """Its rate, of what the disk gave to raw direct I/O."""
    cpu_s_per_gib: float
    threads: int = 1

    def flush(self, link: float) -> float:
        """Return its rate over a link: a part of it, and never more than its threads can do."""
        return min(link * self.ratio_to_raw, self.threads * 2**30 / self.cpu_s_per_gib)


def engines(results: Path) -> dict[str, Engine]:
    """Return what was measured, by name of the contender."""
    found = json.loads((results / "bench_local.json").read_text(encoding="utf-8"))
    saves = found["states"]["gpt"]["summary"]["save"]
    threads = {"datastates": int(value("writers"))}

    def engine(name: str) -> Engine:
        ratio, cpu = (saves[name][k]["median"] for k in ("ratio_to_raw", "cpu_s_per_gib"))
        return Engine(ratio, cpu, threads.get(name, 1))

    return {name: engine(name) for name in ("torch.save/load", "DCP async_save", "datastates")}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a GPU finds around it, in bytes per second."""

    name: str
    storage: float
    """All of storage, for all."""
    writer: float
    """Most that one rank's file gets."""
    nic: float
    """A GPU's part of its node's adapters."""

    def link(self, gpus: int) -> float:
        """Return what each of so many writers gets."""
        return min(self.storage / gpus, self.writer, self.nic)


_POLARIS_NIC = value("polaris_nics") * value("nic") / value("gpus_per_node")
_PERLMUTTER_NIC = value("perlmutter_nics") * value("nic") / value("gpus_per_node")
POLARIS = Machine(
    "Polaris",
    value("polaris_storage"),
    value("polaris_storage") / value("polaris_osts"),
    _POLARIS_NIC,
)
PERLMUTTER = Machine("Perlmutter", value("perlmutter_storage"), _PERLMUTTER_NIC, _PERLMUTTER_NIC)


@dataclass(frozen=True, slots=True)
class Run:
    """A model on a machine."""

    name: str
    parameters: float
    gpus: int
    machine: Machine
    tokens_per_s: float = 0.0
    """Of one GPU; 0: by FLOP."""

    def work(self, interval: int, iterations: int) -> Work:
        """Return one GPU's part."""
        nbytes = self.parameters * value("state") / self.gpus
        tokens = value("llama_tokens") if self.tokens_per_s else value("tokens")
        rate = self.tokens_per_s or trained_tokens_per_s(self.parameters)
        return Work(nbytes, tokens / rate, 2 * nbytes / value("hbm"), iterations, interval)

    def rates(self, engine: Engine) -> Rates:
        """Return what one GPU gets, saving so."""
        send = self.machine.nic * value("peer_share")
        return Rates(value("copy"), engine.flush(self.machine.link(self.gpus)), send)


def trained_tokens_per_s(parameters: float) -> float:
    """Return tokens per second and GPU."""
    return value("flops") / (value("flop_per_token") * parameters)


RUNS = (
    *(
        Run(f"{size}B on {gpus}", size * 1e9, gpus, POLARIS)
        for size, gpus in ((3, 4), (7, 8), (13, 16), (30, 64), (70, 128), (70, 256))
    ),
    Run("65B on 512", 65e9, 512, PERLMUTTER, value("llama_rate")),
)

_COSTS: dict[str, Any] = {"call_s": value("call"), "tail_s": value("tail")}
POLICIES: Mapping[str, tuple[Policy, str]] = {
    policy.name: (policy, engine)
    for policy, engine in (
        (Policy("synchronous", blocks=True, **_COSTS), "torch.save/load"),
        (Policy("eager copy", **_COSTS), "DCP async_save"),
        (Policy("lazy copy", lazy=True, **_COSTS), "datastates"),
        (Policy("lazy + peer", lazy=True, peer=True, store_every=10, **_COSTS), "datastates"),
    )
}
"""Name → policy, and whose measured way of writing it uses."""


def arena(policy: Policy, states: float) -> Policy:
    """Return the policy with another arena."""
    return replace(policy, arena_states=states)
