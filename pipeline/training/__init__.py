"""The training loop and what is handed to it."""
