"""What the commands do, as functions; the names that people use are in `bcl` itself."""

import os

Where = str | os.PathLike[str]
"""A path, or a `Run`, which stands for its directory."""
