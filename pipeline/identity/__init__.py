"""The identity of a result: the key of a run and the fingerprint of its code."""
