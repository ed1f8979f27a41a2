"""One TOML file per game: deviations from the defaults only, each number with its unit and source."""
