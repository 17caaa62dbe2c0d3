"""The load harness: plain HTTP and SSE against any OpenAI-compatible server.

It imports no other package of this project.
"""
