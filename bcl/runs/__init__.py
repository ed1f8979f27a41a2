"""Run directories: every file write goes through `store`."""
