"""Start the training script, follow it, and kill it in the middle of a save.

A step is committed exactly when its directory contains `zarr.json`; a directory without is a save
under way. Looking and killing are not one act: the save could commit in between. So the process is
first frozen (SIGSTOP), then looked at again. If the step is still half-written, the process gets
its SIGKILL; if not, it goes on and the next save is tried. So the demo does not depend on timing.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("train_gpt.py")
POLL_S = 0.0005
REPORT_EVERY_S = 0.2
STANDSTILL_S = 120.0
MIN_FILES = 10  # of about 300: what is cut off shall be a save that has got somewhere
STEP_DIRS = "step-" + 10 * "[0-9]"

Report = Callable[[int, float], None]
"""Called now and then with the last step and its loss."""


class TrainingError(Exception):
    """The training script failed, stood still, or ended before it could be killed in a save."""

    def __init__(self, reason: str, job: "Job") -> None:
        super().__init__(
            f"{job.name}: {reason}; the end of {job.log}:\n{job.log.read_text()[-2000:]}"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One start of the training script."""

    name: str
    """Its losses go to `NAME.jsonl`, what it prints to `NAME.log`."""
    checkpoints: Path
    """Directory of the checkpoints; a job that finds some there goes on from the newest."""
    steps: int
    save_every: int
    """Steps between saves."""
    batch: int
    """Sequences per step."""

    @property
    def losses(self) -> Path:
        return self.checkpoints.parent / f"{self.name}.jsonl"

    @property
    def log(self) -> Path:
        return self.checkpoints.parent / f"{self.name}.log"

    @property
    def command(self) -> list[str]:
        options = {
            "--out": self.checkpoints,
            "--losses": self.losses,
            "--steps": self.steps,
            "--save-every": self.save_every,
            "--batch": self.batch,
        }
        return [
            sys.executable,
            str(SCRIPT),
            *(str(word) for pair in options.items() for word in pair),
        ]


@dataclass(frozen=True, slots=True)
class Kill:
    """What was left by a SIGKILL in the middle of a save."""

    at_step: int
    """Last step the training finished."""
    step_dir: Path
    """Directory of the step whose save was cut off."""
    files: int
    nbytes: int
    missed: int
    """Saves that committed before the kill could land."""


def run_to_end(job: Job, report: Report) -> None:
    """Run `job` until it ends. Raises TrainingError if it fails."""
    with _started(job) as process:
        follower = _Follower(job, report)
        while process.poll() is None:
            follower.look()
            time.sleep(REPORT_EVERY_S)
        if process.returncode != 0:
            raise TrainingError(f"it ended with status {process.returncode}", job)
    follower.look(now=True)


def run_and_kill(job: Job, first: int, report: Report) -> Kill:
    """Run `job` and kill it in the save of step `first`, or a later one if that was too quick."""
    missed: set[Path] = set()
    with _started(job) as process:
        follower = _Follower(job, report)
        while process.poll() is None:
            step_dir = _half_written(job.checkpoints, first)
            if step_dir is not None and step_dir not in missed:
                if _killed_while_half_written(process, step_dir):
                    follower.look(now=True)
                    return _examine(job, step_dir, len(missed))
                missed.add(step_dir)
            follower.look()
            time.sleep(POLL_S)
    reason = f"no save from step {first} on was caught half-written ({len(missed)} were seen)"
    raise TrainingError(f"{reason}; it ended with status {process.returncode}", job)


def read_losses(path: Path) -> dict[int, float]:
    """Return the loss of each step logged so far; a line still being written is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return {record["step"]: record["loss"] for record in records}


def newest_step_dir(checkpoints: Path) -> Path | None:
    """Return the directory of the newest step, committed or not."""
    return max(checkpoints.glob(STEP_DIRS), default=None)


def saved_step(step_dir: Path) -> int:
    return int(step_dir.name.removeprefix("step-"))


@contextmanager
def _started(job: Job) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `job`; on leaving, it is dead, whatever happened."""
    with job.log.open("wb") as log:
        process = subprocess.Popen(job.command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()  # nothing happens to a process that has ended
            process.wait()


class _Follower:
    """Reports the steps of a job, and notices when there are none any more."""

    def __init__(self, job: Job, report: Report) -> None:
        self._job, self._report = job, report
        self._step = 0
        self._looked_at = 0.0
        self._moved_at = time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Report the newest step, if it is time or `now`. Raises TrainingError on a standstill."""
        if not now and time.monotonic() - self._looked_at < REPORT_EVERY_S:
            return
        self._looked_at = time.monotonic()
        losses = read_losses(self._job.losses)
        step = max(losses, default=0)
        if step > self._step:
            self._step, self._moved_at = step, self._looked_at
            self._report(step, losses[step])
        elif self._looked_at - self._moved_at > STANDSTILL_S:
            raise TrainingError(f"it stands still after step {step}", self._job)


def _half_written(checkpoints: Path, first: int) -> Path | None:
    """Return the newest step directory from `first` on if it has data but no commit."""
    newest = newest_step_dir(checkpoints)
    if newest is None or saved_step(newest) < first or (newest / "zarr.json").exists():
        return None
    return newest if sum(path.is_file() for path in newest.rglob("*")) >= MIN_FILES else None


def _killed_while_half_written(process: "subprocess.Popen[bytes]", step_dir: Path) -> bool:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # all threads stand
    if (step_dir / "zarr.json").exists():
        process.send_signal(signal.SIGCONT)
        return False
    process.send_signal(signal.SIGKILL)
    process.wait()
    return True


def _examine(job: Job, step_dir: Path, missed: int) -> Kill:
    files = [file for file in step_dir.rglob("*") if file.is_file()]
    return Kill(
        at_step=max(read_losses(job.losses)),
        step_dir=step_dir,
        files=len(files),
        nbytes=sum(file.stat().st_size for file in files),
        missed=missed,
    )
