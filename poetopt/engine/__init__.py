"""The solve loop: from a Problem and options to a Solution whose plan has been simulated."""
