"""The checks, a module for each kind: functions from a Subject to Trials."""
