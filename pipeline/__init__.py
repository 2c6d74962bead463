"""headstart: the route from raw text to an evaluated classifier."""
