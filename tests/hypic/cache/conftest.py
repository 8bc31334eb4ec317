"""Profiles of hypothesis: tests/mutations.py wants to know whether a fault is seen, not the smallest way to see it."""

from hypothesis import Phase, settings

settings.register_profile("no_shrink", phases=(Phase.explicit, Phase.generate))
