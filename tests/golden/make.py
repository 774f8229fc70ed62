"""Write the golden checkpoints of the format that this version writes, where they are missing.

Run from the root, once:

    python tests/golden/make.py

A format that was released is never written again: its directory stays as it is.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import golden_state  # noqa: E402 - it lies beside this folder

import datastates as ds  # noqa: E402
from datastates import plan  # noqa: E402
from datastates.manifest import FORMAT  # noqa: E402

if __name__ == "__main__":
    plan.EXTENT_NBYTES = 32 << 10  # so that a small array is a Zarr shard
    for layout, name in (("tree", f"format-{FORMAT}"), ("packed", f"format-{FORMAT}-packed")):
        if (HERE / name).exists():
            print(f"{name} is there already")
            continue
        with ds.Checkpointer(HERE / name, layout=layout) as ckpt:
            ckpt.save(
                golden_state.state(),
                step=7,
                metrics=golden_state.METRICS,
                metadata=golden_state.METADATA,
            )
