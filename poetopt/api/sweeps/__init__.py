"""Many points (model, device, budget, deadline, method) on many processors, into one SQLite file that resumes."""
