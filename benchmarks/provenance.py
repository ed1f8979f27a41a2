"""Where a published number comes from."""

import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch


def provenance(device: str) -> dict[str, str]:
    """Command, commit, date, machine and PyTorch of this run."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {
        "command": "python " + " ".join(sys.argv),
        "commit": commit or "unknown",
        "date": str(date.today()),
        "machine": f"{machine}, {os.cpu_count()} cores",
        "torch": torch.__version__,
    }


def store(file: Path, device: str, facts: dict[str, Any]) -> None:
    """Write what was measured, below where it comes from."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(provenance(device) | facts, indent=2) + "\n")
