"""`run.storage`: a folder or a bucket, waiting for it, leases in it, inputs shipped through it."""
