"""The results of one agent: all paths in the folder in which they lie, and how rows of results are stored.

evals/scores.jsonl          scores; evals/learned-at-*/ are adversaries that were trained against the agent
certs/certificates.jsonl    certificates
breaking/searches.jsonl     the smallest budget that breaks the agent; beside it the scores of the search
videos/  frames.npz  report.html
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bcl.errors import StoreError
from bcl.runs import store
from bcl.runs.store import Json
from bcl.runs.version_0_1 import current_flag, current_row
from bcl.settings import format_eps, typed_values

PROGRESS = "progress.json"
RESULT = "result.json"


@dataclass(frozen=True)
class Flag:
    """One reason to distrust an evaluation (`bcl.evaluation.flags`)."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"

    @classmethod
    def from_stored(cls, stored: Any) -> "Flag":
        """Of its fields, or of the text that earlier versions stored; raises TypeError for anything else."""
        return cls(**typed_values(cls, current_flag(stored)))


@dataclass(frozen=True)
class RowsFolder:
    """Rows of one kind in one file; processes that share the work have one each, which `gather` joins."""

    path: Path
    _name: ClassVar[str]
    _of_old: ClassVar[str]
    """Pattern of version 0.1's files."""

    def append(self, row: Mapping[str, Any], part: int | None = None) -> None:
        """Store one more; `part`: which of several processes that share the work."""
        store.append_row(self.path / (f"{self._name}.jsonl" if part is None else f"{self._name}-{part}.jsonl"), row)

    def gather(self) -> None:
        """Join what processes that shared the work have left, once all of them ended."""
        for path in sorted(self.path.glob(f"{self._name}-*.jsonl")):
            for row in store.read_metrics(path):
                self.append(row)
            store.remove(path)

    def read(self, agent: str) -> Iterator[tuple[str, Json]]:
        """An agent's rows, by its fingerprint (empty: any), and where each lies."""
        for path in sorted(self.path.glob(self._of_old)):
            row = current_row(store.read_json(path))
            if row["agent"] and agent in ("", row["agent"]):  # the floor of version 0.1 names none
                yield f"'{path}'", row
        for path in sorted(self.path.glob(f"{self._name}*.jsonl")):
            for number, row in enumerate(map(current_row, store.read_metrics(path)), 1):
                if not row["agent"] or not isinstance(row["agent"], str):
                    raise StoreError(f"line {number} of '{path}' does not fit (it names no agent)", "delete that line")
                if agent in ("", row["agent"]):
                    yield f"line {number} of '{path}'", row

    def progress(self, part: int) -> Path:
        """Where one of several processes that share the work tells how far it is."""
        return self.path / f"{part}-{PROGRESS}"

    def check_writable(self) -> None:
        """Refuse, before the work, a folder in which nothing can be stored."""
        try:
            store.try_to_write(self.path / self._name)
        except StoreError as error:
            hint = "results stand beside the agent: copy it to a folder that you may write to (zoo agents: cd to one)"
            raise StoreError(error.message, hint) from None


class CertificatesFolder(RowsFolder):
    """Certificates of one agent."""

    _name = "certificates"
    _of_old = "*.json"


class ScoresFolder(RowsFolder):
    """Scores of one agent."""

    _name = "scores"
    _of_old = "eps-*.json"

    @property
    def certificates(self) -> CertificatesFolder:
        """Those of the same agent."""
        return CertificatesFolder(self.path.parent / "certs")

    def adversary(self, eps: float, identity: str) -> "ScoresFolder":
        """Where an adversary is trained against the agent, and scores of the agent lie by which it is chosen."""
        return ScoresFolder(self.path / f"learned-at-{format_eps(eps).replace('/', '-')}-{identity}")


class SearchesFolder(RowsFolder):
    """What searches for the smallest budget that breaks the agent found."""

    _name = "searches"
    _of_old = RESULT


class Results:
    """All results of one agent; `path` may hold none yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scores = ScoresFolder(path / "evals")
        self.certificates = self.scores.certificates
        self.search = ScoresFolder(path / "breaking")  # for the smallest budget that breaks the agent
        self.searches = SearchesFolder(self.search.path)
        self.videos = path / "videos"
        self.frames_file = path / "frames.npz"  # sample frames of a report
        self.report = path / "report.html"

    @staticmethod
    def beside(file: Path) -> "Results":
        """Of a policy file."""
        return Results(file.with_suffix(".results"))
