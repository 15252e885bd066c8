"""Pipeline schedules: the orders that the twin simulates and the runtime executes."""
