"""The commands of the program; `poetopt.cli.app` registers them."""
