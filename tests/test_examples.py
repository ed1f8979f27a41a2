"""The examples run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_runs_and_draws(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "examples" / "demo.py"), "--quick", "--parallel", "1", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a quick look, not the paper's protocol" in done.stdout
    assert (tmp_path / "run" / "demo" / "return-against-budget.png").stat().st_size > 10_000
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)  # finished: read, not done again
    assert again.returncode == 0, again.stderr
    assert "'run' is finished" in again.stdout
    assert again.stdout.splitlines()[-6:] == done.stdout.splitlines()[-6:]
