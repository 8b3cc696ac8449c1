"""How hypothesis draws its examples: the same ones on every run and every machine, and nothing kept between runs."""

from hypothesis import settings

settings.register_profile("headwise", derandomize=True, deadline=None, database=None, print_blob=False)
settings.load_profile("headwise")
