"""Settings that every test runs under."""

from hypothesis import HealthCheck, settings

# A busy machine is not a failure. With CI set, Hypothesis' own profile also makes the examples repeatable.
settings.register_profile("sharer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `python -m tests fuzz`: other examples at each run, and many; each that was found once is tried first ever after.
settings.register_profile(
    "fuzz", deadline=None, max_examples=5_000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("sharer")
