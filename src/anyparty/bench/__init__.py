"""Published experiments: the paper's settings and numbers as data, one command to run them, ours beside theirs."""
