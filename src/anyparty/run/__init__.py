"""Training, predicting, saving: where methods and carriers meet."""
