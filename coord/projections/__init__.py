"""The folds of the facts: pure, and the same whether a log is folded event by event or from the start."""
