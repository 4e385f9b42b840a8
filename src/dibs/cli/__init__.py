"""The command line: one file per verb. Text and exit codes are made here, and only here."""
