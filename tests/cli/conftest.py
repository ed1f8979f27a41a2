from collections.abc import Callable
from pathlib import Path

import pytest

from bcl.cli.main import main


@pytest.fixture
def in_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in an empty folder; gives exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(list(words))
        out, err = capsys.readouterr()
        return int(exit.value.code or 0), out, err

    return run
