"""Search: from a Problem and options to a Solution whose plan has been simulated.

`search` is the whole, `deepening` goes from scope to scope, `scope_search` solves one scope, `model_search` one of its
models. `run` has the state, time and gap included; `tuning` has the constants.
"""
