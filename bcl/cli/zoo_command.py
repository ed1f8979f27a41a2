"""bcl zoo."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from bcl import zoo
from bcl.errors import WeightsError


@dataclass(frozen=True)
class Command:
    """List the published agents with their returns, or tell all about one: how it was trained, and its checksum."""

    takes_settings: ClassVar[bool] = False

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """An agent of the list."""

    def run(self, _: list[str]) -> None:
        """Print."""
        if self.name is not None:
            agent = zoo.named(self.name.removeprefix(zoo.PREFIX))
            print((agent.folder / zoo.ABOUT).read_text(), end="")
            return
        names = zoo.names()
        if not names:
            raise WeightsError("the zoo of this installation is empty", zoo.RESTORE)
        print(
            "mean return by budget (0: no attack), the worst within each budget at which all attacks of a suite were played:"
        )
        for agent in map(zoo.named, names):
            returns = ", ".join(f"{eps}: {mean:.4g}" for eps, mean in agent.within.items())
            print(f"  {agent.folder.name:<20}{agent.game:<14}{agent.recipe:<14}{returns} ({agent.suite})")
        print(f"\nnext: bcl attack {zoo.PREFIX}{names[0]} --suite quick --eps 10/255 --episodes 1")
