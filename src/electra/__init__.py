"""Electra: pre-train text encoders as discriminators."""

__version__ = "0.1.0"
