"""The search: from a Problem and options to a Solution whose plan has been simulated.

`search` is the whole, `deepening` goes from scope to scope and says when one is left for the next, `scope_search`
solves one, `model_search` one model of it. `budget` is time and gap, handed down; `tuning` has the numbers.
"""
