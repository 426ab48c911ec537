"""What any room may use: units, errors, files, interrupts, progress."""
