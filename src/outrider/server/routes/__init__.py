"""The routes, a file for each kind; every file has ``router(service)``."""
