"""Using a classifier: predictions on the command line and in MLflow's model server."""
