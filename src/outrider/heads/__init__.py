"""Modules of trained drafters and their checkpoint formats."""
