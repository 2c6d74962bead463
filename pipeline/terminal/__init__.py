"""Output for a person at a terminal."""
