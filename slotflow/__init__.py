"""Posteriors for every Galactic binary in LISA's data."""

__version__ = "0.1.0"
