"""Other task queues doing the same no-op work on the same server."""
