"""Where gangs run: one small protocol, several engines below it."""
