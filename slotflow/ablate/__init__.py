"""Comparisons of slot mechanisms on additive mixtures (``slotflow ablate``)."""
