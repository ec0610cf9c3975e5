"""Recommended settings for a Celery app that Poimen is added to: `app.config_from_object("config.celeryconfig")`.

`Poimen("name")` sets these for its new app. `Poimen(existing_app)` changes nothing of yours: take from here what fits,
`poimen doctor` lists what conflicts. Batches do not depend on most of them, plain tasks of the same app do.
"""

from redis.exceptions import OutOfMemoryError, ReadOnlyError

MINUTE = 60
DAY = 24 * 60 * MINUTE

# ------------------------------------------------------------------------------------------- delivery
# A message is acknowledged after its task, so a killed worker's task is delivered again instead of lost. Tasks must
# bear to run twice. (The lanes of a batch acknowledge early: their leases do this work, without the long wait.)
task_acks_late = True
# A pool process that dies (out of memory, segmentation fault) gives its task back too ...
task_reject_on_worker_lost = True
# ... but not for ever: with a finite `max_retries` on the task this ends a task that kills every worker it meets.
task_retry_on_worker_lost = True
# Skipping a task "because its id succeeded before" leaves chords waiting for ever when a worker died between storing
# the result and reporting it.
worker_deduplicate_successful_tasks = False

# One message at a time: with the default of 4, long tasks wait behind a busy worker while another one idles.
worker_prefetch_multiplier = 1
# With late acknowledgement a multiplier of 1 still reserves one message more than there are processes; not with this.
worker_disable_prefetch = True
# Tasks with a countdown sit in the worker's memory, unacknowledged; more than this and the worker stops taking them.
worker_eta_task_limit = 1_000

# ------------------------------------------------------------------------------------------- time
# Every task ends: a hang would hold its slot for ever. Must stay below the visibility timeout.
task_soft_time_limit = 50 * MINUTE
task_time_limit = 55 * MINUTE

broker_transport_options = {
    # A message unacknowledged for this long is delivered again *while the first run goes on*. So: longer than the
    # longest task, than twice `result_chord_join_timeout`, than any skew between the machines' clocks.
    "visibility_timeout": 2 * 60 * MINUTE,
    # Look for such messages every 10 seconds (the throttle of 10 would make it 100), and take at most 1,000 at once: a
    # backlog must not come as a flood.
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    "unacked_restore_limit": 1_000,
    # Without timeouts a connection that died without a word blocks for as long as the system likes (minutes to hours).
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 25,
    # Sending again after a timeout can publish a message twice; it also switches batch publishing off.
    "retry_on_timeout": False,
}
# With RabbitMQ as the broker instead (`broker_url = "amqp://…"`, Redis stays the store), none of these exist. There:
# broker_transport_options = {
#     # A message is sent when the broker says so; otherwise what is sent while it goes away is lost without an error.
#     "confirm_publish": True,
#     # Without timeouts whoever publishes hangs with a broker that does not answer.
#     "read_timeout": 10,
#     "write_timeout": 10,
# }
# broker_heartbeat = 60
# # Only the Redis transport knows it; there, late acknowledgement and a multiplier of 1 are enough.
# worker_disable_prefetch = False
# # Higher numbers come first, and only in queues that are declared with `x-max-priority`; a queue that exists without
# # it must be deleted first. The names `high`, `normal` and `low` are 9, `task_default_priority` and 0.
# task_queue_max_priority = 9
# task_default_priority = 5
# # A task that runs longer than RabbitMQ's `consumer_timeout` (30 minutes unless its own configuration says otherwise)
# # without acknowledgement closes its worker's channel, and is delivered again while it runs: raise that limit.

# A refused command (memory full, fail-over to a replica) reconnects instead of leaving a worker that consumes nothing.
broker_channel_error_retry = True
# Workers may start before their broker, and never give up on it (the default ends after 100 attempts).
broker_connection_retry_on_startup = True
broker_connection_max_retries = None

# ------------------------------------------------------------------------------------------- results
# The defaults are 120 seconds, none and off.
redis_socket_timeout = 30
redis_socket_connect_timeout = 5
redis_socket_keepalive = True
redis_backend_health_check_interval = 25
# Storing a result twice does no harm, unlike publishing twice.
redis_retry_on_timeout = True
# A short outage of the result store must not fail finished work; the default number of retries is without end.
result_backend_always_retry = True
result_backend_max_retries = 20
result_backend_transport_options = {
    # A full server and a replica are outages that pass.
    "additional_connection_errors": (OutOfMemoryError, ReadOnlyError),
}
# Keep results, and the bookkeeping of chords, longer than the longest workflow with its pauses.
result_expires = 7 * DAY
result_chord_expires = 7 * DAY
# How long the worker that starts a chord's body waits for the members' results; it is blocked meanwhile.
result_chord_join_timeout = 20

# ------------------------------------------------------------------------------------------- shutdown
# On SIGTERM a worker finishes what runs; after this long it gives the rest back. Set it 10 s below what the platform
# allows (`terminationGracePeriodSeconds`, `stop_grace_period`). In containers also set REMAP_SIGTERM=SIGQUIT.
worker_soft_shutdown_timeout = 50
# Also when only tasks with a countdown are held, which would otherwise wait for the visibility timeout.
worker_enable_soft_shutdown_on_idle = True

# ------------------------------------------------------------------------------------------- content
# Never pickle: whoever can write to the broker could run code in the workers.
task_serializer = "json"
result_serializer = "json"
accept_content = ["json"]
result_accept_content = ["json"]

# ------------------------------------------------------------------------------------------- watching
# What Flower shows. Events are lost while nobody listens: they are a view, never the truth.
task_track_started = True
worker_send_task_events = True
task_send_sent_event = True
# With the Redis transport 0 is served first, and a message without a priority counts as 0: so leave room above.
task_default_priority = 3
