"""One file a diagnosis, and the table of them."""
