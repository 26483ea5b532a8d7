"""The facts that the log can hold, for ever: catalogue, envelope, codec, upcasters, hash chain."""
