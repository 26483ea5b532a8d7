"""One resource a file: each turns a request into a call of the services, and what they say into an answer."""
