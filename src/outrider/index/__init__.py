"""Datastores for method ``rest``: corpora, and writing what ``drafters/datastore.py`` reads."""
