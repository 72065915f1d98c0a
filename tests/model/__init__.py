"""The model of the protocol in docs/model, and what checks it."""
