"""Programs that use Poimen as a user would: `python -m examples.census`, and `examples.nightly` for worker and beat."""
