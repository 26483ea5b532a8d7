"""The HTTP servers that the app runs on: `server.engine`. Each gives every worker its own services and its own ticker."""
