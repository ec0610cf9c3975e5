"""Programs that use Poimen as a user would; each runs with `python -m examples.<name>`."""
