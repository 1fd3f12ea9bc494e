"""Finds out why speculation does not pay: reads metrics, records and settings, and names the likely fault."""
