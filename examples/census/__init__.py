"""Measures every Python file below a directory, in parallel: `python -m examples.census --dir DIR`."""
