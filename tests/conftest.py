"""Settings that every test runs under."""

from hypothesis import settings

# No deadline: a busy machine is not a failure. With CI set, Hypothesis' own profile also makes the examples repeatable.
settings.register_profile("sharer", deadline=None)
settings.load_profile("sharer")
