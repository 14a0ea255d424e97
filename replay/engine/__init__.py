"""The discrete-event engine: tasks progress at the rates that sharing gives them."""
