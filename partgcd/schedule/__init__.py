"""When a rediscovery is due, and the system timers that ask."""
