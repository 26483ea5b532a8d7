"""One module a step, named by its number; `revision` is the schema version that it leads to."""
