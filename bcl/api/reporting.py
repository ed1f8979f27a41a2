"""bcl.report; `bcl report` calls the same code."""

from pathlib import Path

from bcl.api import Where
from bcl.api.target import pick_device
from bcl.reports.collect import agent_file
from bcl.reports.html import write_report


def report(run: Where, *, out: Where | None = None, no_frames: bool = False, device: str = "auto") -> Path:
    """One page that opens anywhere about a run, finished or not, or a policy file; as `bcl report`. Gives its path."""
    target = Path(run)
    played_on = None if no_frames or not agent_file(target) else pick_device(device)
    return write_report(target, Path(out) if out else None, device=played_on)[1]
