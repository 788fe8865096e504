"""Campaigns that attack this package and count what happens: `python -m electra.soak --help` lists them."""
