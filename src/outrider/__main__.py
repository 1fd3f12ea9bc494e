"""``python -m outrider``."""

from outrider.cli.main import main

main()
