"""Train, be killed in the middle of a save, resume, and lose nothing.

1. `train_gpt.py` runs without a disturbance: that is what the other run must equal.
2. It runs again and is killed with SIGKILL while a save is half-written.
3. It is started again, and goes on from the newest whole step.
4. Losses and final checkpoints of both are compared, bit for bit.
5. The checkpoint is opened with plain zarr.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import zarr
from compare import compare_losses, compare_trees
from plot import plot_losses
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from runs import (
    Job,
    Kill,
    Report,
    TrainingError,
    newest_step_dir,
    read_losses,
    run_and_kill,
    run_to_end,
    saved_step,
)

import datastates as ds

SAVES = 12  # in a run; half as many in a quick one
BATCH = 16  # sequences per step; one in a quick run
WEIGHT = "h.0.attn.qkv.weight"

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    args = parse_arguments()
    began = time.monotonic()
    whole, killed, resumed = make_jobs(args.out, args.steps, args.quick)
    clear(whole, killed, resumed)
    train_thrice(whole, killed, resumed)
    heading("4. Compare with the run that was not disturbed")
    exact = compare(whole, killed, resumed)
    picture = args.out / "loss.png"
    plot_losses(picture, *map(read_losses, (whole.losses, killed.losses, resumed.losses)))
    say(f"the loss curves are in {picture}")
    heading("5. Open the checkpoint with plain zarr")
    show_zarr(newest_step_dir(resumed.checkpoints))
    heading(f"{'EXACT' if exact else 'NOT EXACT'}, in {time.monotonic() - began:.0f} s")
    return 0 if exact else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="default: demo-out")
    parser.add_argument("--steps", type=int, help="training steps (default: 180)")
    parser.add_argument("--quick", action="store_true", help="few small steps: about 15 seconds")
    args = parser.parse_args()
    args.steps = args.steps or (18 if args.quick else 180)
    if args.steps < SAVES:
        parser.error(f"--steps must be at least {SAVES}, so that there are saves to be killed in")
    return args


def make_jobs(out: Path, steps: int, quick: bool) -> tuple[Job, Job, Job]:
    """Return the three jobs; the last two share a directory of checkpoints."""
    save_every, batch = (steps // (SAVES // 2), 1) if quick else (steps // SAVES, BATCH)
    whole = Job("uninterrupted", out / "uninterrupted", steps, save_every, batch)
    killed = Job("killed", out / "interrupted", steps, save_every, batch)
    return whole, killed, replace(killed, name="resumed")


def clear(*jobs: Job) -> None:
    """Remove what an earlier demo left, and nothing else."""
    for job in jobs:
        shutil.rmtree(job.checkpoints, ignore_errors=True)
        job.losses.unlink(missing_ok=True)
        job.checkpoints.parent.mkdir(parents=True, exist_ok=True)


def train_thrice(whole: Job, killed: Job, resumed: Job) -> None:
    heading("1. Train without a disturbance")
    with progress_bar(whole.steps) as report:
        run_to_end(whole, report)
    heading("2. Train again, and be killed in the middle of a save")
    with progress_bar(killed.steps) as report:
        kill = run_and_kill(killed, killed.steps // 2, report)
    show_kill(kill, killed)
    heading("3. Start it again")
    with progress_bar(resumed.steps) as report:
        run_to_end(resumed, report)
    say(resumed.log.read_text().strip())


def show_kill(kill: Kill, job: Job) -> None:
    say(f"SIGKILL after step {kill.at_step}, in the save of step {saved_step(kill.step_dir)}")
    if kill.missed:
        say(f"({kill.missed} saves before were quicker than the kill)")
    size = f"{kill.files} files, {kill.nbytes / 1e6:.1f} MB"
    say(f"half-written: {kill.step_dir}: {size}, no zarr.json")
    with ds.Checkpointer(job.checkpoints) as ckpt:
        steps = list(ckpt.steps())
    if saved_step(kill.step_dir) in steps:
        raise AssertionError(f"the half-written step is listed: {steps}")
    say(f"and invisible: Checkpointer.steps() is {steps}")


def compare(whole: Job, killed: Job, resumed: Job) -> bool:
    """Print how the two runs compare, and return whether they are equal bit for bit."""
    expected = read_losses(whole.losses)
    before, after = read_losses(killed.losses), read_losses(resumed.losses)
    differences = compare_losses(expected, before) + compare_losses(expected, after)
    if max(after) != max(expected):
        differences.append(f"the resumed run ended at step {max(after)}")
    verdict(f"losses: {len(before)} before the kill, {len(after)} after it", differences)
    trees = []
    for job in (whole, resumed):
        with ds.Checkpointer(job.checkpoints) as ckpt:
            trees.append(ckpt.restore())
    result = compare_trees(*trees)
    size = f"{result.tensors} tensors ({result.nbytes / 1e6:.1f} MB), {result.others} other values"
    verdict(f"final checkpoints: {size}", result.differences)
    return not differences and not result.differences


def show_zarr(step_dir: Path | None) -> None:
    assert step_dir is not None
    group = zarr.open_group(step_dir, mode="r")
    say(f'group = zarr.open("{step_dir}", mode="r")')
    say(f'groups: {", ".join(sorted(group.group_keys()))}; and this is group["model"].tree():')
    model = group["model"]
    assert isinstance(model, zarr.Group)
    console.print(str(model.tree()), markup=False)
    say(f"group.attrs: {dict(group.attrs)}")
    weight = model[WEIGHT]
    assert isinstance(weight, zarr.Array)
    say(f'group["model/{WEIGHT}"]: shape {weight.shape}, {weight.dtype}; its [0, :4] is')
    say(f"  {weight[0, :4]!r}")


def heading(text: str) -> None:
    console.print(f"\n[bold]{text}[/]")


def say(text: str) -> None:
    console.print(f"   {text}", markup=False)


def verdict(what: str, differences: list[str]) -> None:
    if not differences:
        console.print(f"   [green]equal, bit for bit[/]: {what}")
        return
    console.print(f"   [bold red]{len(differences)} DIFFER[/]: {what}")
    for difference in differences[:10]:
        say(f"  {difference}")


@contextmanager
def progress_bar(steps: int) -> Iterator[Report]:
    """Yield what is to be called with the last step and its loss; plain lines off a terminal."""
    if not console.is_terminal:
        yield plain_lines(steps)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("steps, {task.description}"))
    with Progress("  ", *columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("starting", total=steps)
        yield lambda step, loss: progress.update(
            task, completed=step, description=f"loss {loss:.3f}"
        )


def plain_lines(steps: int) -> Report:
    """Return a report that prints a line per quarter of the way."""
    printed = 0

    def report(step: int, loss: float) -> None:
        nonlocal printed
        if step * 4 // steps > printed:
            printed = step * 4 // steps
            say(f"step {step}/{steps}, loss {loss:.3f}")

    return report


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrainingError as error:
        sys.exit(f"the demo failed: {error}")
