"""Saving beside training at 4 to 512 GPUs: a simulation, fed with measured and published rates.

Nothing here is a measurement of such a machine. `scale_facts.py` names the source of every figure,
and what is assumed; `scale_model.py` is the model; the tables compare it with published rows.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import scale_plot
import scale_report
import scale_study
from scale_facts import FIGURES, NOT_FOUND, engines

HERE = Path(__file__).parent


def _finite(value: Any) -> Any:
    """Return the value as JSON has it: without infinities."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if value == float("inf") else value


@click.command(help=__doc__)
@click.option("--rates", type=click.Path(path_type=Path), default=HERE / "results", help="Where.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results")
def main(rates: Path, out: Path) -> None:
    measured = engines(rates)
    found = scale_study.checks(measured)
    result: dict[str, Any] = {
        "benchmark": "scale",
        "simulated": True,
        "figures": {name: asdict(figure) for name, figure in FIGURES.items()},
        "measured": {name: asdict(engine) for name, engine in measured.items()},
        "not_found": list(NOT_FOUND),
        "checks": [{**asdict(c), "agrees": c.agrees} for c in found],
        "grid": list(scale_study.grid(measured)),
        "limits": list(scale_study.limits(measured)),
        "same_writer": list(scale_study.same_writer(measured)),
        "arenas": list(scale_study.arenas(measured)),
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(result), indent=1, allow_nan=False)
    (out / "scale.json").write_text(text + "\n", encoding="utf-8")
    scale_plot.draw(result, measured, out / "scale.png")
    scale_report.show(result, found)


if __name__ == "__main__":
    main()
