"""Several engines behind one address: a Ray Serve application over the server."""
