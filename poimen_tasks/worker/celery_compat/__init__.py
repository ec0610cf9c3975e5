"""The only package that touches what Celery keeps private; a contract test holds it against the installed Celery.

- `capture`: what Celery's tracer said about the item that runs in a thread, and the retry that the item asked for.
- `lane_backend`: the result backend of a task while an item of it runs.
- `seams`: where a task's methods lead to us instead of to Celery, within an item.
- `item_tracer`: Celery's tracer, built for items.
- `plain_tracer`: the check around the tracer of a task's plain messages.
- `stacks`: the stacks of running requests and tasks.
- `pool_exit`: how a pool process ends.
- `app_state`: what an app keeps of connections and queues.
"""
