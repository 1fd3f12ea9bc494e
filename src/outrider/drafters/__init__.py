"""Drafters: one file a method, one row a method in :mod:`outrider.drafters.registry`."""
