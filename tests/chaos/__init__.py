"""Never two, never stuck: processes and a server under faults of all kinds, and what is read from it afterwards."""
