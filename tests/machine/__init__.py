"""The rules of a lease as a model, and random histories of it on a real server, alone and with many processes."""
