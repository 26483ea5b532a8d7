"""The HTTP face: a Falcon WSGI app around the services, and the gunicorn server that runs it.

A request passes the gate (request id, body size, authentication, role, scope, method), then its resource (validation, command).
Whatever goes wrong ends in one error body. Source: design page `api.md`.
"""
