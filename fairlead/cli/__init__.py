"""The door for people at a terminal: verbs, tables and errors that say what to do."""
