"""`headstart gc`: what lies in `run.storage`, what still refers to it, and the removal of the rest."""
