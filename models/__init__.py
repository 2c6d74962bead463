"""Model families. Needs torch only; knows nothing of files, Ray or MLflow."""
